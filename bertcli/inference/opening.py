"""Which engine opens a model: torch or OpenVINO, or none of them. Nothing here needs torch."""

from __future__ import annotations

from bertcli.checkpoints.scan import STATIC, TERM_TABLE
from bertcli.errors import UsageError
from bertcli.files.versions import install_command, require_torch
from bertcli.inference.compute import gpu_possible
from bertcli.inference.openvino import OpenvinoError, openvino_installed
from bertcli.inference.progress import SILENCE, Tell
from bertcli.inference.runtime import ModelSpec, Runtime, TokenizerLoader


def open_runtime(spec: ModelSpec, tokenizer: TokenizerLoader, tell: Tell = SILENCE) -> Runtime:
    """Open a model with the engine that is asked for; no other is imported.

    auto is OpenVINO on a CPU, where it is installed and can do what is asked, else torch. Raises
    ModelError for a folder that is not a whole model of this kind, UsageError for a choice that
    this model or this machine cannot follow.
    """
    if spec.kind in (STATIC, TERM_TABLE):
        from bertcli.inference.static_engine import open_static

        return open_static(spec, tokenizer())
    if spec.compute.backend == "torch":
        return _torch(spec, tokenizer, tell, "--backend torch")
    from bertcli.inference.cpu_engine import open_compiled

    if spec.compute.backend == "openvino":
        return open_compiled(spec, tokenizer, tell)
    reason = _not_openvino(spec)
    tell.detail(f"backend: torch ({reason})" if reason else "backend: openvino")
    if reason:
        return _torch(spec, tokenizer, tell, reason)
    try:
        return open_compiled(spec, tokenizer, tell)
    except OpenvinoError as failed:
        if spec.compute.dtype == "int8":
            raise
        tell.warn(f"{failed}; torch runs the model instead (--backend torch)")
        return _torch(spec, tokenizer, tell)


def _not_openvino(spec: ModelSpec) -> str:
    """Return why OpenVINO does not run what is asked for here; "" when it does."""
    from bertcli.inference.cpu_engine import unable

    if not openvino_installed():
        return "OpenVINO is not installed"
    if reason := unable(spec):
        return reason
    compute = spec.compute
    if compute.device == "auto" and compute.dtype != "int8" and gpu_possible():
        from bertcli.inference.devices import available

        if (best := available()[0]) != "cpu":
            return f"device {best}"
    return ""


def _torch(spec: ModelSpec, tokenizer: TokenizerLoader, tell: Tell, reason: str = "") -> Runtime:
    if spec.compute.dtype == "int8":
        raise UsageError(
            f"--dtype int8 is not possible: OpenVINO computes it, on a CPU ({reason})",
            "leave that out, or use --dtype float32"
            if openvino_installed()
            else f"{install_command('int8')}, or use --dtype float32",
        )
    require_torch(f"running the model ({reason})" if reason else "running the model")
    from bertcli.inference.torch_engine import open_torch

    return open_torch(spec, tokenizer(), tell)
