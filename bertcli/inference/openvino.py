"""The library OpenVINO: the only place that imports it, silent and with our settings."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from bertcli.errors import BertcliError
from bertcli.files.versions import install_command

SETTINGS = {  # of every compiled model
    "INFERENCE_PRECISION_HINT": "f32",  # or CPUs with bfloat16 would compute in that
    "PERFORMANCE_HINT": "LATENCY",  # one request at a time, on all threads
    "ENABLE_CPU_PINNING": "NO",  # or processes of one thread would all compute on the first core
}
# How much is kept that was prepared for the shape of a batch: each window of texts has new shapes.
# Otherwise the engine keeps 5,000 such things and its kernels 1,024, and half a gigabyte fills up.
# With fewer than these, those of 8 bits are prepared anew for each window.
KEPT = {"CPU_RUNTIME_CACHE_CAPACITY": "256"}
KEPT_KERNELS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
NAME = "openvino"
HINTS = {"float32": "f32", "int8": "f32", "bfloat16": "bf16"}  # of what is no 8-bit product
CORE = "openvino._pyopenvino"


class OpenvinoError(BertcliError):
    """OpenVINO cannot run this model, or cannot run at all."""

    usual_hint = "use --backend torch"


def settings(dtype: str, threads: int | None = None) -> dict[str, str | int]:
    """Return the settings of a model that computes in this number format, on so many threads."""
    count = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
    return {**SETTINGS, "INFERENCE_PRECISION_HINT": HINTS[dtype], **count}


def openvino_installed() -> bool:
    """Tell whether the library is there; nothing of it is imported."""
    return sys.modules.get(NAME, NAME) is not None and find_spec(NAME) is not None


def openvino() -> Any:
    """Import the library without the package that reports its use to its makers.

    Raises OpenvinoError when it is not installed, or cannot be imported.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return _imported(NAME)


def openvino_core() -> Any:
    """Import what runs a compiled model, the extension module of the library, and no more.

    The rest of it reads the models of six other libraries, which takes longer than all of a run.
    Raises as `openvino` does.
    """
    if not openvino_installed():
        return _imported(NAME)
    if CORE in sys.modules:
        return sys.modules[CORE]
    spec = find_spec(NAME)
    os.environ.setdefault(*KEPT_KERNELS)  # read when the first kernel is made
    package = ModuleType(NAME)
    package.__path__ = list((spec and spec.submodule_search_locations) or ())
    sys.modules[NAME] = package
    try:
        _imported("openvino.package_utils")._add_openvino_libs_to_search_path()  # on Windows
        return _imported(CORE)
    finally:
        del sys.modules[NAME]  # it is imported as a whole where a model is compiled


def core_for_cpu() -> Any:
    """Return what loads compiled models, and keeps little for shapes of batches that came."""
    core = openvino_core().Core()
    with suppress(RuntimeError):  # it has no such name any more
        core.set_property("CPU", KEPT)
    return core


def has_bfloat16() -> bool:
    """Tell whether this CPU multiplies bfloat16, as OpenVINO sees it."""
    return "BF16" in openvino_core().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def nncf() -> Any:
    """Import the library that makes 8-bit models. Raises BertcliError when it is not installed."""
    openvino()
    try:
        import nncf
    except ImportError as failed:
        raise BertcliError(
            f"--dtype int8 needs the package nncf to make an 8-bit model: {failed}",
            f"{install_command('int8')}, or use --dtype float32",
        ) from None
    return nncf


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as failed:
        raise OpenvinoError(
            f"--backend openvino needs the package openvino: {failed}",
            f"{install_command('openvino')}, or use --backend torch",
        ) from None
