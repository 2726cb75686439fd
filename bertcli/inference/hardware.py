"""What this machine has, told without the seconds that importing torch takes.

The last bits of what is computed depend on what the CPU can do.
"""

from __future__ import annotations

import os
import platform
import re
from glob import glob
from importlib.util import find_spec

BUILDS = re.compile(r"^(?:cuda|hip|xpu)\b.*= *'", re.MULTILINE)  # of torch, in torch/version.py
METAL = "/System/Library/Frameworks/Metal.framework"  # of a Mac
# What a GPU looks like where there is /proc: on Linux.
NODES = ("/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/kfd", "/dev/dri/render*", "/dev/dxg")


def gpu_possible() -> bool:
    """Tell whether torch has to be asked: false is certain, true is not."""
    if os.path.exists(METAL):
        return True
    return _built_for_gpus() and (not os.path.exists("/proc/self") or any(map(glob, NODES)))


def _built_for_gpus() -> bool:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    told = os.path.join(os.path.dirname(spec.origin), "version.py")
    try:
        with open(told, encoding="utf-8") as file:
            return bool(BUILDS.search(file.read()))
    except OSError:
        return True


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
