"""The library OpenVINO: the only place that imports it, silent and with our settings."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bertcli.errors import BertcliError

SETTINGS = {  # of every compiled model
    "INFERENCE_PRECISION_HINT": "f32",  # or CPUs with bfloat16 would compute in that
    "PERFORMANCE_HINT": "LATENCY",  # one request at a time, on all threads
}


def openvino() -> Any:
    """Import the library without the package that reports its use to its makers.

    Raises BertcliError when it is not installed.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ModuleNotFoundError:
        raise BertcliError(
            "--backend openvino needs the package openvino",
            "pip install 'bertcli[openvino]', or use --backend torch",
        ) from None
    return openvino


def converted(module: Any, example: Any) -> Any:
    """Return the graph of a torch module, as torch traces it on these example inputs.

    `openvino.convert_model` does the same, and reports it to its makers.
    """
    openvino()
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    decoder = TorchScriptPythonDecoder(
        module, example_input=example, trace_kwargs={"check_trace": False}
    )
    frontend = FrontEndManager().load_by_framework("pytorch")
    return frontend.convert(frontend.load(decoder))


def openvino_version() -> str:
    """Return the version that is installed, "" for none. Nothing is imported."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return ""
