"""Where and how a model runs: as a user chooses it, and what this machine has. No torch.

Torch takes seconds to import, so what can be told without it is. The last bits of what is computed
depend on what the CPU can do.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from glob import glob
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from bertcli.errors import UsageError

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


T = TypeVar("T")
Backend: TypeAlias = Literal["auto", "torch", "openvino"]


@dataclass(frozen=True)
class Compute:
    """Devices, number format, threads and batch size. None, or auto, leaves the choice to us."""

    backend: Backend = "auto"
    device: str = "auto"  # or a list: a process for each
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    threads: int | None = None  # of all processes together
    batch_tokens: int | None = None

    @property
    def beyond_openvino(self) -> str:
        """The choice that OpenVINO cannot follow, "" for none."""
        if not {*self.device.split(",")} <= {"auto", "cpu"}:
            return f"--device {self.device}"
        return f"--dtype {self.dtype}" if self.dtype == "float16" else ""


def options_from(cls: type[T], options: Mapping[str, Any], **other: Any) -> T:
    """Return a record of options by their names, and of others. UsageError for an unknown one."""
    names = [x.name for x in fields(cls) if x.init and x.name not in other]  # type: ignore[arg-type]
    if unknown := options.keys() - {*names}:
        raise UsageError(f"unknown option {min(unknown)!r}", f"one of {', '.join(names)}")
    for name, kind in get_type_hints(cls).items():
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        if choices and options.get(name, choices[0]) not in choices:
            raise UsageError(f"unknown {name} {options[name]!r}", f"one of {', '.join(choices)}")
    return cls(**options, **other)


def several(names: str, instead: str) -> UsageError:
    """Return the refusal of a list of devices where one computes."""
    return UsageError(f"--device {names} names several devices; this command takes one", instead)
