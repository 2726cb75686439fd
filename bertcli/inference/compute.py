"""Where and how a model runs: as a user chooses it, and what this machine has. No torch.

Torch takes seconds to import, so what can be told without it is. The last bits of what is computed
depend on what the CPU can do.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields
from glob import glob
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from bertcli.errors import UsageError
from bertcli.files.versions import versions

# What a GPU looks like where there is /proc: on Linux.
NODES = ("/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/kfd", "/dev/dri/render*", "/dev/dxg")


def gpu_possible() -> bool:
    """Tell whether torch has to be asked: false is certain, true is not."""
    if versions("torch").get("torch", "+cpu").endswith("+cpu"):
        return False
    return not os.path.exists("/proc/self") or any(map(glob, NODES))


def cpu_features() -> str:
    """Return the kind of the CPU, and what of it arithmetic depends on, as NumPy sees it."""
    import numpy as np

    extensions: Any = np.show_config("dicts")
    return " ".join([platform.machine(), *extensions["SIMD Extensions"].get("found", ())])


T = TypeVar("T")
Backend: TypeAlias = Literal["auto", "torch", "openvino"]


@dataclass(frozen=True)
class Compute:
    """Devices, number format, threads and batch size. None, or auto, leaves the choice to us."""

    backend: Backend = "auto"
    device: str = "auto"  # or a list
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    threads: int | None = None
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
        parts = (kind, *get_args(kind))  # of what may be None as well
        choices = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
        default = getattr(cls, name, None)
        if choices and options.get(name, default) not in (default, *choices):
            raise UsageError(f"unknown {name} {options[name]!r}", f"one of {', '.join(choices)}")
    return cls(**options, **other)
