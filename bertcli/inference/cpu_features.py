"""What the CPU can do: compiled models, and the last bits of what they compute, depend on it."""

from __future__ import annotations

import os
import platform

ARITHMETIC = ("amx", "avx", "asimd", "bf16", "f16c", "fma", "i8mm", "sse4", "sve")


def cpu_flags() -> set[str]:
    """Return what Linux says the CPU can do; nothing elsewhere."""
    if not os.path.exists("/proc/cpuinfo"):
        return set()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return set(line.split(":", 1)[1].split())
    return set()


def cpu_features() -> str:
    """Return the kind of the CPU and those of its flags that arithmetic depends on."""
    flags = (flag for flag in cpu_flags() if flag.startswith(ARITHMETIC))
    return " ".join([platform.machine(), *sorted(flags)])
