"""Device, precision and threads: the user's options, and what this machine has. No torch.

OpenVINO is imported only here, without its messages and with our settings.

Importing torch takes seconds, so checks that do not need it are made without it. The last bits of
results depend on features of the CPU.
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

# On systems with /proc (Linux).
GPU_DEVICE_FILES = (
    "/dev/nvidia*",
    "/dev/nvhost*",
    "/dev/nvmap",
    "/dev/kfd",
    "/dev/dri/render*",
    "/dev/dxg",
)


def gpu_possible() -> bool:
    """Return False if torch certainly has no GPU here; True means that torch must be asked."""
    if os.path.exists("/proc/self") and not any(map(glob, GPU_DEVICE_FILES)):
        return False
    return not versions("torch").get("torch", "+cpu").endswith("+cpu")


def cpu_features() -> str:
    """Return the CPU type and the features that affect arithmetic, as detected by NumPy."""
    import numpy as np

    extensions: Any = np.show_config("dicts")
    return " ".join([platform.machine(), *extensions["SIMD Extensions"].get("found", ())])


DEVICE_TYPES = {"auto", "cpu", "cuda", "mps", "xpu"}


def refuse_unknown_devices(names: str) -> None:
    """Raise UsageError if a list of devices contains an unknown type, such as gpu."""
    for name in names.split(","):
        if name.partition(":")[0] not in DEVICE_TYPES:
            raise UsageError(
                f"device {name!r} not found",
                f"{option('device', 'cuda')} is a GPU of NVIDIA or AMD, mps of Apple, xpu of Intel",
            )


Backend: TypeAlias = Literal["auto", "torch", "openvino"]


@dataclass(frozen=True)
class Compute:
    """Devices, precision, threads and batch size. None or auto selects a default.

    With ``parallel``, a CPU runs several batches at once, each on a part of the threads. Long runs
    are faster, because no thread waits for another within a batch; a single text is slower. With
    "auto", only runs of several texts do so; the weights are then in memory twice.

    ``batch_tokens`` counts tokens without padding where OpenVINO computes in float32.
    """

    backend: Backend = "auto"
    device: str = "auto"  # or a comma-separated list
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    threads: int | None = None
    batch_tokens: int | None = None
    parallel: Literal[True, False, "auto"] = False

    def __post_init__(self) -> None:
        """Raise UsageError for a device of an unknown type."""
        refuse_unknown_devices(self.device)

    @property
    def unsupported_by_openvino(self) -> str:
        """The option that OpenVINO does not support; "" if there is none."""
        if not {*self.device.split(",")} <= {"auto", "cpu"}:
            return option("device", self.device)
        return option("dtype", self.dtype) if self.dtype == "float16" else ""


# --- the library OpenVINO ---

COMPILE_SETTINGS: dict[str, str | int] = {  # of every compiled model
    "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 on CPUs that support it
    "PERFORMANCE_HINT": "LATENCY",  # one request at a time, on all threads
    "ENABLE_CPU_PINNING": "NO",  # pinned single-threaded processes all run on the first core
    # Cached kernels per batch shape. Each window has new shapes, and the default capacities (5,000
    # of the engine, 1,024 of its kernels) take half a gigabyte. With fewer than these, int8 kernels
    # are prepared again for each window.
    "CPU_RUNTIME_CACHE_CAPACITY": "256",
}
KERNEL_CACHE = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
OPENVINO = "openvino"
PRECISION_HINTS = {
    "float32": "f32",
    "int8": "f32",
    "bfloat16": "bf16",
}  # int8: of unquantized operations
OPENVINO_CORE = "openvino._pyopenvino"
IMPORTING = Lock()  # the extension module fails if it is loaded twice


class OpenvinoError(BertcliError):
    """OpenVINO cannot run this model, or cannot run at all."""

    usual_hint = f"use {option('backend', 'torch')}"


def compile_settings(
    dtype: str, threads: int | None = None, *, parallel: bool = False
) -> dict[str, str | int]:
    """Return the settings to compile a model with, for this precision and number of threads.

    With ``parallel``, OpenVINO chooses how many requests the model runs at once, from the cores and
    the model.
    """
    changes: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": PRECISION_HINTS[dtype]}
    if threads is not None:
        changes["INFERENCE_NUM_THREADS"] = threads
    if parallel:
        changes["PERFORMANCE_HINT"] = "THROUGHPUT"
    return COMPILE_SETTINGS | changes


def openvino_installed() -> bool:
    """Return True if OpenVINO is installed, without importing it."""
    return find_spec(OPENVINO) is not None


def import_openvino() -> Any:
    """Import OpenVINO without its telemetry package.

    Raises OpenvinoError if it is not installed or cannot be imported.
    """
    with IMPORTING:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        return _import_or_explain(OPENVINO)


def openvino_core() -> Any:
    """Import only the extension module of OpenVINO, which runs compiled models.

    The other modules read models of six other libraries; importing them takes longer than a run.
    Thread-safe. Raises as `import_openvino` does.
    """
    if find_spec(OPENVINO) is None:
        return _import_or_explain(OPENVINO)
    if OPENVINO_CORE in sys.modules:
        return sys.modules[OPENVINO_CORE]
    with IMPORTING:
        if OPENVINO_CORE in sys.modules:  # another thread was faster
            return sys.modules[OPENVINO_CORE]
        os.environ.setdefault(*KERNEL_CACHE)  # read when the first kernel is created
        if OPENVINO in sys.modules:
            return _import_or_explain(OPENVINO_CORE)
        return _import_or_explain(OPENVINO_CORE, load=_load_core)


def _load_core(name: str) -> ModuleType:
    """Load the extension module without its package, which can still be imported later.

    `import_module` would import the package first, so this finds and executes the file directly.
    """
    package = find_spec(OPENVINO)
    folders = package.submodule_search_locations if package else None
    _load_alone("openvino.package_utils", folders)._add_openvino_libs_to_search_path()  # on Windows
    core = _load_alone(name, folders)
    return sys.modules.setdefault(name, core)


def _load_alone(name: str, folders: Sequence[str] | None) -> ModuleType:
    """Return a new module from these folders. Raises ImportError if it is not there."""
    spec = PathFinder.find_spec(name, folders)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def has_bfloat16() -> bool:
    """Return True if this CPU computes in bfloat16, according to OpenVINO."""
    return "BF16" in openvino_core().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def import_nncf() -> Any:
    """Import NNCF, which quantizes models to int8. Raises BertcliError if not installed."""
    import_openvino()
    return _import_or_explain("nncf", option("dtype", "int8"), "int8", option("dtype", "float32"))


def _import_or_explain(
    name: str,
    purpose: str = option("backend", "openvino"),
    extra: str = OPENVINO,
    instead: str = option("backend", "torch"),
    load: Callable[[str], ModuleType] = import_module,
) -> Any:
    """Return a module. Raises OpenvinoError with the install command if it cannot be imported.

    ``purpose`` is what needs the module, ``extra`` the pip extra with it, ``instead`` an option
    that does without it.
    """
    try:
        return load(name)
    except ImportError as failed:
        if isinstance(failed.__cause__, KeyboardInterrupt):  # an interrupt during C code
            raise KeyboardInterrupt from None
        raise OpenvinoError(
            f"{purpose} needs the package {name.partition('.')[0]}: {failed}",
            f"{install_command(extra)}, or use {instead}",
        ) from None
