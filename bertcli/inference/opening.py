"""Which engine opens a model: torch or OpenVINO. Nothing here needs torch."""

from __future__ import annotations

from bertcli.inference.runtime import ModelSpec, Runtime
from bertcli.inference.tell import SILENCE, Tell
from bertcli.tokenizing.tokenizer import Tokenizer


def open_runtime(spec: ModelSpec, tokenizer: Tokenizer, tell: Tell = SILENCE) -> Runtime:
    """Open a model with the engine that is asked for; no other is imported.

    Raises ModelError for a folder that is not a whole model of this kind, UsageError for a choice
    that this model or this machine cannot follow.
    """
    if spec.compute.backend == "openvino":
        from bertcli.inference.compiled import CompiledRuntime

        return CompiledRuntime.open(spec, tokenizer, tell)
    from bertcli.inference.torch_runtime import TorchRuntime

    return TorchRuntime.open(spec, tokenizer, tell)
