"""8-bit integers for OpenVINO: what a graph multiplies, by ranges seen in a sample that ships here.

NNCF chooses the scales, of weights one for each output, of what goes in one for all, and moves the
differing sizes of inputs into the weights (SmoothQuant). Embeddings are kept in 8 bits as well;
attention, LayerNorm and sums stay float32.

Three things are done beyond its defaults. The few units of a feed-forward block that are far louder
than all others, and would set the scale for them, stay float32 (`loud_units`): nearly all of
the error came from there. The range of what goes in is all that the sample shows, where NNCF takes
the mean of the ranges of its texts, and cuts off what is beyond: the worst text is half as far from
float32. And queries and keys are not rounded, as attention multiplies float32.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from io import StringIO
from typing import Any, TypeAlias

import numpy as np

from bertcli.checkpoints.weights import Weights
from bertcli.errors import ModelError
from bertcli.inference.graph import LOUD, OpenvinoNetwork, loudest
from bertcli.inference.openvino import core_for_cpu, openvino, settings
from bertcli.inference.runner import Reading, Tokens
from bertcli.inference.runtime import ModelSpec
from bertcli.models.config import BertConfig
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.tokenizer import Tokenizer

LaidOut: TypeAlias = Sequence[np.ndarray]  # the inputs of a graph: `RowLayout.of`
LOUDEST = 96  # one in so many units stays float32
SMOOTHED = 0.7  # of the differing sizes of inputs, how much the weights take over


def calibration_texts(spec: ModelSpec, config: BertConfig) -> list[Tokens]:
    """Return the texts of the sample as a model takes them."""
    tokenizer = Tokenizer.load(spec.folder, parse_special=spec.parse_special)
    layout = Layout(truncation="longest_first", max_length=config.most_tokens)
    token = spec.reading.token
    lines = files(__package__).joinpath("calibration.txt").read_text("utf-8").splitlines()
    texts = []
    for item in tokenizer.encode_records([Record(line) for line in lines], layout):
        ids = [*item.columns["input_ids"]]
        if token is not None:  # the one that is read
            ids[len(ids) // 2] = token
        texts.append(Tokens.listed([ids]))
    return texts


def loud_units(
    weights: Weights, spec: ModelSpec, sample: Sequence[LaidOut]
) -> dict[int, np.ndarray]:
    """Return for each layer which units of its feed-forward block are the loudest in a sample.

    Raises ModelError for numbers that cannot be rounded.
    """
    net, every = OpenvinoNetwork(weights), replace(spec, reading=Reading(spec.reading.layers))
    graph = loudest(net, every)
    model = core_for_cpu().compile_model(graph, "CPU", settings("float32"))
    request = model.create_infer_request()
    reach: dict[int, np.ndarray] = {}
    for inputs in sample:
        tensors = dict(enumerate(map(net.core.Tensor, inputs)))
        sizes = request.infer(tensors, False, False).values()
        for layer, size in zip(net.widened, sizes, strict=True):
            if not np.isfinite(size).all():
                raise ModelError(
                    "--dtype int8 is not possible: weights, or what they make of texts, are NaN,"
                    " infinite or huge",
                    "bertcli inspect --verify checks the weights",
                )
            reach[layer] = np.maximum(reach.get(layer, 0), size)
    masks = {}
    for layer, size in reach.items():
        masks[layer] = np.zeros(len(size), bool)
        masks[layer][np.argsort(-size, kind="stable")[: max(1, len(size) // LOUDEST)]] = True
    return masks


def quantized(library: Any, graph: Any, sample: Sequence[LaidOut]) -> Any:
    """Return a graph of OpenVINO with 8-bit products; ``library`` is NNCF."""
    library.set_log_level(logging.ERROR)
    whole = import_module("nncf.quantization.range_estimator").RangeEstimatorParametersSet.MINMAX
    smoothing = library.AdvancedSmoothQuantParameters(matmul=SMOOTHED)
    with redirect_stdout(StringIO()):  # it shows bars
        return library.quantize(
            openvino().Model(graph),
            library.Dataset(sample),
            model_type=library.ModelType.TRANSFORMER,
            subset_size=len(sample),
            ignored_scope=library.IgnoredScope(
                types=["ScaledDotProductAttention", "Divide"],
                patterns=[f".*{LOUD}.*"],
                validate=False,
            ),
            advanced_parameters=library.AdvancedQuantizationParameters(
                smooth_quant_alphas=smoothing, activations_range_estimator_params=whole
            ),
        )
