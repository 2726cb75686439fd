"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

TELLING = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")
TELLING += ("amx_int8", "avx_vnni", "asimd", "bf16", "i8mm", "sve")
PACKAGES = ("torch", "tokenizers", "transformers", "sentence-transformers", "onnx", "onnxruntime")
PACKAGES += ("openvino", "ctranslate2", "numpy")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_flags() -> set[str]:
    """Return what Linux says the CPU can do; nothing elsewhere."""
    return set(_cpuinfo("flags").split() or _cpuinfo("Features").split())


def about() -> dict[str, Any]:
    """Return the machine and the versions, for the JSON."""
    flags = cpu_flags()
    return {
        "date": date.today().isoformat(),
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in TELLING if flag in flags],
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cpuinfo(key: str) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return ""
