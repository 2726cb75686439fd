"""8-bit integers for OpenVINO: what a graph multiplies, by ranges seen in a sample that ships here.

NNCF chooses the scales, of weights one for each output, of what goes in one for all, and moves the
differing sizes of inputs into the weights (SmoothQuant). Embeddings are kept in 8 bits as well;
attention, LayerNorm and sums stay float32.

Three things are done beyond its defaults. The few units of a feed-forward block that are far louder
than all others, and would set the scale for them, stay float32 (`separate_loud`): nearly all of
the error came from there. The range of what goes in is all that the sample shows, where NNCF takes
the mean of the ranges of its texts, and cuts off what is beyond: the worst text is half as far from
float32. And queries and keys are not rounded, as attention multiplies float32.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from importlib import import_module
from importlib.resources import files
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertcli.errors import ModelError
from bertcli.inference.rows import LaidOut
from bertcli.inference.runner import Tokens
from bertcli.inference.runtime import ModelSpec
from bertcli.models.bert import BertIntermediate, BertModel, GatedIntermediate, Residual
from bertcli.models.config import BertConfig
from bertcli.models.cpu_products import linear, some_units
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.tokenizer import Tokenizer

LOUD = 24  # one in so many units stays float32
SMOOTHED = 0.7  # of the differing sizes of inputs, how much the weights take over
HELD_OUT = 4  # each so many-th text is not calibrated on: it tells how near the numbers are


def calibration_texts(spec: ModelSpec, config: BertConfig) -> list[Tokens]:
    """Return the texts of the sample as a model takes them."""
    tokenizer = Tokenizer.load(spec.folder, parse_special=spec.parse_special)
    layout = Layout(truncation="longest_first", max_length=config.most_tokens)
    token = spec.reading.token
    lines = files(__package__).joinpath("calibration.txt").read_text("utf-8").splitlines()
    found = []
    for item in tokenizer.encode([Record(line) for line in lines], layout):
        ids = [*item.columns["input_ids"]]
        if token is not None:  # the one that is read
            ids[len(ids) // 2] = token
        found.append(Tokens.listed([ids]))
    return found


class SeparateFeedForward(nn.Module):
    """A feed-forward block whose loud units are computed apart from the quiet ones."""

    def __init__(self, wide: BertIntermediate, narrow: Residual, loud: Tensor) -> None:
        """Divide by ``loud``, true for the loud ones of the intermediate units."""
        super().__init__()
        back = narrow.dense.weight
        self.wide, self.loud_wide = (_units(wide, some) for some in (~loud, loud))
        self.narrow = linear(back[:, ~loud], narrow.dense.bias)
        self.loud_narrow = linear(back[:, loud], torch.zeros(len(back)))
        self.LayerNorm = narrow.LayerNorm

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Map y [..., hidden], the input of the block, to [..., hidden], and add x.

        Where norms are last, y is x.
        """
        loud = self.loud_narrow(self.loud_wide(y))
        return self.LayerNorm(self.narrow(self.wide(y)) + loud + x)


def _units(wide: BertIntermediate, some: Tensor) -> BertIntermediate:
    made = deepcopy(wide)
    made.dense = some_units(wide.dense, some)
    if isinstance(made, GatedIntermediate):
        made.gate = some_units(made.gate, some)
    return made


def separate_loud(model: BertModel, sample: Sequence[Tokens]) -> None:
    """Divide the feed-forward blocks of a model by how loud their units are in a sample.

    Raises ModelError for numbers that cannot be rounded.
    """
    reach: dict[nn.Module, Tensor] = {}

    def look(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen = inputs[0].abs().flatten(0, -2).amax(0)
        reach[part] = torch.maximum(reach.get(part, seen), seen)

    hooks = [layer.output.register_forward_pre_hook(look) for layer in model.encoder.layer]
    for text in sample:
        if not model(torch.from_numpy(text.ids.astype(np.int64))[None]).isfinite().all():
            raise ModelError(
                "--dtype int8 is not possible: weights, or what they make of texts, are NaN,"
                " infinite or huge",
                "bertcli inspect --verify checks the weights",
            )
    for hook in hooks:
        hook.remove()
    for layer in model.encoder.layer:
        seen = reach[layer.output]
        loud = torch.zeros(len(seen), dtype=torch.bool)
        loud[seen.topk(max(1, len(seen) // LOUD)).indices] = True
        layer.output = SeparateFeedForward(layer.intermediate, layer.output, loud)
        layer.intermediate = nn.Identity()


def quantized(library: Any, graph: Any, sample: Sequence[LaidOut]) -> Any:
    """Return a graph of OpenVINO with 8-bit products; ``library`` is NNCF."""
    library.set_log_level(logging.ERROR)
    whole = import_module("nncf.quantization.range_estimator").RangeEstimatorParametersSet.MINMAX
    smoothing = library.AdvancedSmoothQuantParameters(matmul=SMOOTHED)
    with redirect_stdout(StringIO()):  # it shows bars
        return library.quantize(
            graph,
            library.Dataset(sample),
            model_type=library.ModelType.TRANSFORMER,
            subset_size=len(sample),
            ignored_scope=library.IgnoredScope(
                types=["ScaledDotProductAttention", "Divide"],
                patterns=[".*loud_.*"],
                validate=False,
            ),
            advanced_parameters=library.AdvancedQuantizationParameters(
                smooth_quant_alphas=smoothing, activations_range_estimator_params=whole
            ),
        )


def agreement(right: Any, wrong: Any, sample: Sequence[LaidOut]) -> dict[str, float]:
    """Return the worst and the mean cosine between what two functions give for texts."""
    both = ((right(columns), wrong(columns)) for columns in sample)
    cosines = [
        _cosine(*(found.mean(0).ravel().astype(np.float64) for found in pair)) for pair in both
    ]
    return {
        "worst_cosine": round(min(cosines), 6),
        "mean_cosine": round(np.mean(cosines).item(), 6),
    }


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    sizes = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / sizes if sizes else float(np.array_equal(a, b))
