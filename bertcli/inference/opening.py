"""Which engine opens a model: torch or OpenVINO. Nothing here needs torch."""

from __future__ import annotations

from bertcli.inference.runtime import ModelSpec, Runtime, Warn


def open_runtime(spec: ModelSpec, warn: Warn = lambda message: None) -> Runtime:
    """Open a BERT without a head, with the engine that is asked for; no other is imported."""
    if spec.compute.backend == "openvino":
        from bertcli.inference.compiled import CompiledRuntime

        return CompiledRuntime.open(spec, warn)
    from bertcli.inference.torch_runtime import TorchRuntime
    from bertcli.models.bert import BertModel

    return TorchRuntime.open(spec, BertModel, warn)
