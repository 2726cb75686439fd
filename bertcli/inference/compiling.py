"""A BertModel, compiled by OpenVINO for the CPU of this machine.

OpenVINO reads the model as torch traces it: the same modules and weights, no second description of
the network. What is compiled takes texts as `rows` lays them out, and returns what is read off the
model, packed: the states of tokens, or what the pooler or the head makes of them, [n, D...].
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.checkpoints.load import load
from bertcli.errors import BertcliError, out_of_memory
from bertcli.inference.compiled_cache import CompiledModel
from bertcli.inference.encoder import combined
from bertcli.inference.openvino import OpenvinoError, converted, nncf, openvino, settings, tidy
from bertcli.inference.quantizing import (
    HELD_OUT,
    agreement,
    calibration_texts,
    quantized,
    separate_loud,
)
from bertcli.inference.rows import LaidOut, RowLayout
from bertcli.inference.runner import Tokens
from bertcli.inference.runtime import ModelSpec
from bertcli.inference.tell import Tell
from bertcli.models.attention import Attend, Distance, placed
from bertcli.models.bert import BertModel, directly
from bertcli.models.heads import ARCHITECTURES, BertWithHead

HIDDEN = -1e30  # added to the score of what is no token: its share of attention is 0
FAR = 0.9  # the mean cosine to float32 of a format that is not good enough
TRIED = (1, 2, 19, 130)  # tokens of the texts that compiled models are compared on
ALIKE = (32, 31, 17)  # tokens of texts that share a batch, to see whether they decide on its bits
NEAR = 1e-4  # of the largest number; a kernel that is wrong is off by as much as the numbers


class CompiledGraph(nn.Module):
    """What is compiled: a model and what is read off it."""

    def __init__(self, model: BertModel | BertWithHead, spec: ModelSpec) -> None:
        super().__init__()
        self.head = model if isinstance(model, BertWithHead) else None
        self.bert = model.bert if isinstance(model, BertWithHead) else model
        self.reading, self.pooled = spec.reading, bool(spec.pooler)
        self.layers = spec.reading.indices(self.bert.config.depth)
        self.layout = RowLayout(spec.reading, self.bert.config.most_tokens)

    def forward(
        self, ids: Tensor, types: Tensor, back: Tensor, rows: Tensor, lengths: Tensor, read: Tensor
    ) -> Tensor:
        """Map the arrays of `LaidOut` to states or logits [n, D...]."""
        first, top = self.reading.first, max(self.layers)
        real = torch.arange(rows.shape[1]) < lengths[:, None]  # [B, L]
        keys = real[:, None, None]
        bias = torch.where(keys, 0.0, HIDDEN)
        kernels = self.bert.direction(in_rows(rows, back, keys, bias))
        asking = self.bert.direction(of_first(rows, keys, bias))
        at, encoder = (back % rows.shape[1])[None], self.bert.encoder
        # As one text, [1, T]: of two axes, 8-bit products without a bias came out wrong (OpenVINO
        # 2026.4, ModernBERT).
        whole = self.bert.states(ids[None], types=types[None], at=at, kernels=kernels)
        wanted: dict[int, Tensor] = {}
        for index, state in enumerate(whole):
            if index in self.layers:
                wanted[index] = state[0, read] if first else state[0]
            if first and index == top - 1:
                wanted[top] = encoder.some(index, state[:, read], asking, state)[0]
            if top in wanted:
                break
        found = combined([wanted[index] for index in self.layers], self.reading.combine)
        if self.reading.mean:
            kept = real.unflatten(1, (-1, *[1] * (found.ndim - 1)))
            total = torch.where(kept, found[rows], 0.0).sum(1)
            found = total / lengths.reshape(-1, *[1] * (total.ndim - 1))
        elif not first:
            found = found[read]
        if self.pooled:
            found = self.bert.pooler(found)
        return found if self.head is None else self.head.packed_logits(found)


def in_rows(rows: Tensor, back: Tensor, keys: Tensor, bias: Tensor) -> Attend:
    """Make the kernel for [1, T] that attends in rows, [B, L], whose ends are hidden."""

    def attend(q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        q, k, v = (x[0, rows] for x in (q, k, v))
        return attended(q, k, v, distance, keys, bias).flatten(0, 1)[None, back]

    return attend


def of_first(rows: Tensor, keys: Tensor, bias: Tensor) -> Attend:
    """Make the kernel for the first token of each text, queries [1, B]."""

    def attend(q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        q, k, v = q[0, :, None], k[0, rows], v[0, rows]
        return attended(q, k, v, distance, keys, bias)[None, :, 0]

    return attend


def attended(
    q: Tensor, k: Tensor, v: Tensor, distance: Distance, keys: Tensor, bias: Tensor
) -> Tensor:
    """Attend from q [B, Lq, H, D], from the first token on, to those of k, v that are ``keys``.

    ``bias`` [B, 1, 1, L] says the same. It is not added to that of distances, but stands in for it:
    8 bits would round what is added.
    OpenVINO 2026.4 computes attention without a bias wrongly, from 16 tokens on.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    q, k, near = placed(q, k, distance, 0)
    bias = bias if near is None else torch.where(keys, near, HIDDEN)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


@torch.inference_mode()
def compiled(spec: ModelSpec, tell: Tell) -> CompiledModel:
    """Load a model, compile it and return it as it is kept; a note says what is waited for.

    Raises ModelError for a folder that is not a whole model of this kind, OpenvinoError when it
    cannot be compiled, or gives other numbers than torch then, BertcliError where 8-bit models
    cannot be made.
    """
    dtype = spec.compute.dtype
    library = nncf() if dtype == "int8" else None  # before weights are read
    model, _ = load(spec.folder, ARCHITECTURES[spec.kind], pooler=spec.pooler, dtype=torch.float32)
    wait = "up to a minute" if dtype == "int8" else "some seconds"
    tell.note(f"first use of this model on this CPU: compiling it ({wait})")
    graph = CompiledGraph(model, spec).eval()
    for layer in graph.bert.encoder.layer:
        layer.call = directly  # parts of a batch would be traced as so many
    texts = [] if dtype == "float32" else calibration_texts(spec, graph.bert.config)
    held_out = [texts.pop(at) for at in reversed(range(0, len(texts), HELD_OUT))]
    if library:
        separate_loud(graph.bert, texts)
    laid = [*map(graph.layout.of, texts)]
    found = _compiled(graph, dtype, lambda it: quantized(library, it, laid) if library else it)
    accuracy: dict[str, Any] = {"nncf": library.__version__} if library else {}
    if dtype == "float32":
        _compare(graph, found)
    else:
        laid = [*map(graph.layout.of, held_out)]
        accuracy |= agreement(partial(_by_torch, graph), lambda text: found(text)[0], laid)
        _refuse_far(dtype, accuracy["mean_cosine"])
    blob = np.frombuffer(found.export_model().getbuffer(), np.uint8)
    return CompiledModel(blob, _same_bits(graph, found, blob, dtype), accuracy)


def _compiled(graph: CompiledGraph, dtype: str, changed: Callable[[Any], Any]) -> Any:
    """Compile the graph as it is ``changed`` after it is traced."""
    example = tuple(map(torch.from_numpy, graph.layout.of(_tried(graph, (3, 2, 1)))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of shapes that are constants here, and of the tracer
        try:
            traced = changed(converted(graph, example))
            tidy(traced)
            return openvino().Core().compile_model(traced, "CPU", settings(dtype))
        except RuntimeError as failed:
            if out_of_memory(failed):
                raise OpenvinoError("out of memory while the model is compiled") from None
            reason = str(failed).strip().splitlines()[-1]
            raise OpenvinoError(f"OpenVINO cannot compile the model: {reason}") from None


def _by_torch(graph: CompiledGraph, columns: LaidOut) -> np.ndarray:
    found: np.ndarray = graph(*map(torch.from_numpy, columns)).numpy()
    return found


def _refuse_far(dtype: str, cosine: float) -> None:
    if not cosine >= FAR:
        raise BertcliError(
            f"in {dtype}, this model gives other numbers: their mean cosine to float32 is {cosine}",
            "use --dtype float32",
        )


def _compare(graph: CompiledGraph, found: Any) -> None:
    for length in TRIED:
        lengths = (length, max(1, length - 1), max(1, length - 2))
        columns = graph.layout.of(_tried(graph, lengths))
        right = _by_torch(graph, columns)
        if not np.isfinite(right).all():
            raise OpenvinoError(
                "with NaN or infinity in its results, the model cannot be compared with what "
                "OpenVINO compiles",
                "bertcli inspect --verify checks the weights; --backend torch needs no comparison",
            )
        with np.errstate(invalid="ignore"):
            wrong = np.abs(found(columns)[0] - right).max()
        if not wrong <= NEAR * max(1.0, np.abs(right).max()):
            raise OpenvinoError(
                f"compiled by OpenVINO, the model is off by {wrong:.1e} at {length} tokens"
            )


def _same_bits(graph: CompiledGraph, found: Any, blob: np.ndarray, dtype: str) -> bool:
    """Say whether texts have the same bits in one batch, and each alone on one thread."""
    library, one = openvino(), {**settings(dtype), "INFERENCE_NUM_THREADS": 1}
    alone = library.Core().import_model(library.Tensor(blob, shared_memory=True), "CPU", one)
    texts = _tried(graph, ALIKE)
    apart = [alone(graph.layout.of(texts.take(np.array([at]))))[0] for at in range(len(texts))]
    return np.array_equal(found(graph.layout.of(texts))[0], np.concatenate(apart))


def _tried(graph: CompiledGraph, lengths: Sequence[int]) -> Tokens:
    """Return texts of so many tokens, as far as the model takes them."""
    config, token = graph.bert.config, graph.reading.token
    sizes = [min(length, config.most_tokens) for length in lengths]
    ids = 7919 * np.arange(len(sizes) * max(sizes)).reshape(len(sizes), -1) % config.vocab_size
    if token is not None:
        ids[:-1, ::2] = token
    return Tokens.listed([row[:size] for row, size in zip(ids.tolist(), sizes, strict=True)])
