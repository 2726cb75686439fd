"""Where and how a model runs: as a user chooses it, and what this machine has. No torch.

The library OpenVINO is imported here alone, silent and with our settings.

Torch takes seconds to import, so what can be told without it is. The last bits of what is computed
depend on what the CPU can do.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import glob
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from threading import Lock
from types import ModuleType
from typing import Any, Literal, TypeAlias

from bertcli.errors import BertcliError, UsageError, option
from bertcli.versions import install_command, versions

# What a GPU looks like where there is /proc: on Linux.
NODES = ("/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/kfd", "/dev/dri/render*", "/dev/dxg")


def gpu_possible() -> bool:
    """Tell whether torch has to be asked: false is certain, true is not."""
    if os.path.exists("/proc/self") and not any(map(glob, NODES)):
        return False
    return not versions("torch").get("torch", "+cpu").endswith("+cpu")


def cpu_features() -> str:
    """Return the kind of the CPU, and what of it arithmetic depends on, as NumPy sees it."""
    import numpy as np

    extensions: Any = np.show_config("dicts")
    return " ".join([platform.machine(), *extensions["SIMD Extensions"].get("found", ())])


DEVICE_TYPES = {"auto", "cpu", "cuda", "mps", "xpu"}


def refuse_unknown_devices(names: str) -> None:
    """Raise UsageError for a list of devices with one of an unknown type, such as gpu."""
    for name in names.split(","):
        if name.partition(":")[0] not in DEVICE_TYPES:
            raise UsageError(
                f"device {name!r} not found",
                f"{option('device', 'cuda')} is a GPU of NVIDIA or AMD, mps of Apple, xpu of Intel",
            )


Backend: TypeAlias = Literal["auto", "torch", "openvino"]


@dataclass(frozen=True)
class Compute:
    """Devices, number format, threads and batch size. None, or auto, leaves the choice to us."""

    backend: Backend = "auto"
    device: str = "auto"  # or a list
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    threads: int | None = None
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for a device of an unknown type."""
        refuse_unknown_devices(self.device)

    @property
    def beyond_openvino(self) -> str:
        """The choice that OpenVINO cannot follow, "" for none."""
        if not {*self.device.split(",")} <= {"auto", "cpu"}:
            return option("device", self.device)
        return option("dtype", self.dtype) if self.dtype == "float16" else ""


# --- the library OpenVINO ---

SETTINGS = {  # of every compiled model
    "INFERENCE_PRECISION_HINT": "f32",  # or CPUs with bfloat16 would compute in that
    "PERFORMANCE_HINT": "LATENCY",  # one request at a time, on all threads
    "ENABLE_CPU_PINNING": "NO",  # or processes of one thread would all compute on the first core
    # How much is kept that was prepared for the shape of a batch: each window of texts has new
    # shapes. Else the engine keeps 5,000 such things and its kernels 1,024, half a gigabyte. With
    # fewer than these, those of 8 bits are prepared anew for each window.
    "CPU_RUNTIME_CACHE_CAPACITY": "256",
}
KEPT_KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
NAME = "openvino"
HINTS = {"float32": "f32", "int8": "f32", "bfloat16": "bf16"}  # of what is no 8-bit product
CORE = "openvino._pyopenvino"
IMPORTING = Lock()  # its extension module fails when it is loaded twice


class OpenvinoError(BertcliError):
    """OpenVINO cannot run this model, or cannot run at all."""

    usual_hint = f"use {option('backend', 'torch')}"


def settings(dtype: str, threads: int | None = None) -> dict[str, str | int]:
    """Return the settings of a model that computes in this number format, on so many threads."""
    count = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
    return {**SETTINGS, "INFERENCE_PRECISION_HINT": HINTS[dtype], **count}


def openvino_installed() -> bool:
    """Tell whether the library is there; nothing of it is imported."""
    return find_spec(NAME) is not None


def openvino() -> Any:
    """Import the library without the package that reports its use to its makers.

    Raises OpenvinoError when it is not installed, or cannot be imported.
    """
    with IMPORTING:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        return _imported(NAME)


def openvino_core() -> Any:
    """Import what runs a compiled model, the extension module of the library, and no more.

    The rest of it reads the models of six other libraries, which takes longer than all of a run.
    Threads may call this at the same time. Raises as `openvino` does.
    """
    if find_spec(NAME) is None:
        return _imported(NAME)
    if CORE in sys.modules:
        return sys.modules[CORE]
    with IMPORTING:
        if CORE in sys.modules:  # another thread was first
            return sys.modules[CORE]
        os.environ.setdefault(*KEPT_KERNELS)  # read when the first kernel is made
        if NAME in sys.modules:
            return _imported(CORE)
        return _imported(CORE, load=_load_core)


def _load_core(name: str) -> ModuleType:
    """Load the extension module without its package, which stays importable as a whole.

    `import_module` would import the package first, so this finds and runs the file itself.
    """
    package = find_spec(NAME)
    folders = package.submodule_search_locations if package else None
    _load_alone("openvino.package_utils", folders)._add_openvino_libs_to_search_path()  # on Windows
    core = _load_alone(name, folders)
    return sys.modules.setdefault(name, core)


def _load_alone(name: str, folders: Sequence[str] | None) -> ModuleType:
    """Return a new module from these folders. ImportError where it is not."""
    spec = PathFinder.find_spec(name, folders)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def has_bfloat16() -> bool:
    """Tell whether this CPU multiplies bfloat16, as OpenVINO sees it."""
    return "BF16" in openvino_core().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def nncf() -> Any:
    """Import the library that makes 8-bit models. Raises BertcliError when it is not installed."""
    openvino()
    return _imported("nncf", option("dtype", "int8"), "int8", option("dtype", "float32"))


def _imported(
    name: str,
    purpose: str = option("backend", "openvino"),
    extra: str = NAME,
    instead: str = option("backend", "torch"),
    load: Callable[[str], ModuleType] = import_module,
) -> Any:
    try:
        return load(name)
    except ImportError as failed:
        if isinstance(failed.__cause__, KeyboardInterrupt):  # that reached it in C code
            raise KeyboardInterrupt from None
        raise OpenvinoError(
            f"{purpose} needs the package {name.partition('.')[0]}: {failed}",
            f"{install_command(extra)}, or use {instead}",
        ) from None
