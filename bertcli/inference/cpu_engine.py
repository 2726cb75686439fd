"""The CPU engine: OpenVINO runs the graph that is made of a model's weights whenever it is opened.

    layout = RowLayout(reading, longest=512)
    layout.lengths(texts.lengths)     # which texts may share a batch: those whose rows are alike
    layout.of(texts)                  # the inputs of the graph, for those of one batch

Everything but attention treats each token alone, and takes the tokens of all texts one after the
other, [T], without padding. For attention each text is a row of a length that follows from its own
alone: so a vector depends on its text alone, to the last bit, in whatever batch, order and number
of threads. So there are few lengths for OpenVINO to prepare itself for as well, which takes it
longer than a small batch; and T is filled up for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.checkpoints.scan import GRAPHS, find_weights, read_config
from bertcli.checkpoints.weights import Weights, read_weights
from bertcli.errors import ModelError, UsageError
from bertcli.families.structure import HEAD_PARTS
from bertcli.files.paths import sha256
from bertcli.files.typed_json import AGAIN
from bertcli.inference.compute import Backend, cpu_features
from bertcli.inference.graph import LOGITS, PADDED, STATES, Batch, Node, OpenvinoNetwork, built
from bertcli.inference.openvino import (
    OpenvinoError,
    core_for_cpu,
    has_bfloat16,
    openvino_core,
    settings,
)
from bertcli.inference.progress import SILENCE, Tell
from bertcli.inference.runner import Arriving, Engine, Finish, Kept, ModelSpec, Reading, Tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.inference.runner import Places

    Numbers = NDArray[np.int32]

STEP = 16  # the length of a row is a multiple of it
PADDED_STEP = 8  # and of this one, where all that is computed is in rows
EVEN = (16, 64)  # and T of one of these: of the second from so many tokens on that it is little
MANY = 1024


@dataclass(frozen=True)
class RowLayout:
    """How texts are laid out for a model that takes so many tokens of a text at most."""

    reading: Reading
    longest: int
    tables: tuple[str, ...] = ()  # extra embeddings
    step: int = STEP

    @property
    def form(self) -> str:
        """What vectors depend on, for manifests."""
        return f"{'packed, in rows' if self.step == STEP else 'rows'} of {self.step}"

    def lengths(self, lengths: Places) -> Places:
        """Return the lengths of the rows of texts of these lengths."""
        rows: Places = np.minimum(lengths + -lengths % self.step, np.maximum(lengths, self.longest))
        return rows

    def of(self, texts: Tokens) -> list[Numbers]:
        """Lay out texts whose rows have one length, or else the longest: the inputs of a graph.

        They are, for B texts, T tokens of all of them and rows of L tokens:

        - ids [T] and token types [T]; behind those of the texts stand zeros,
        - where in the rows, row after row, each token stands [T],
        - which token stands in each place of the rows [B, L]; behind the end of a text, its first,
        - how many tokens of each text others attend to [B],
        - which tokens are read [n]; none where the mean of all is,
        - ids of extra embeddings [tables, T], for a model that has some.
        """
        lengths, total = texts.lengths, len(texts.ids)
        even = EVEN[total >= MANY]
        flat = np.zeros((3 + len(self.tables), total + -total % even), np.int32)
        place = np.arange(self.lengths(lengths).max(initial=0))
        real = place < lengths[:, None]
        others = (texts.extra[name] for name in self.tables)
        flat[:, :total] = np.stack([texts.ids, texts.types, np.flatnonzero(real), *others])
        rows = texts.offsets[:-1, None] + np.where(real, place, 0)
        whole = self.reading.mean or self.reading.terms
        read = np.arange(0) if whole else self.reading.places(texts)
        arrays = (*flat[:3], rows, self.reading.attended(texts), read)
        extra = [flat[3:]] if self.tables else []
        return [np.ascontiguousarray(array, np.int32) for array in (*arrays, *extra)]


BUDGET = 4096  # tokens of a batch: few enough for the cache of a CPU
SCORED = 256  # tokens of a batch whose whole vocabulary is scored


class InGraph:
    """The model as `Finish` sees it: its pooler and its head are part of the graph."""

    def pooler(self, first: np.ndarray) -> np.ndarray:
        """Return what the pooler in the graph gave."""
        return first

    packed_logits = pooler  # and what its head gave
    term_scores = pooler  # and what became of the scores of words


@dataclass
class CompiledModel(Engine):
    """A compiled model, run by this process over texts whose rows have one length."""

    model: Any  # of OpenVINO
    weights: Weights  # whose memory it shares
    spec: ModelSpec
    dtype: str
    graph: Path | None  # the file that it is, where it was not made of weights
    backend: Backend = "openvino"

    def __post_init__(self) -> None:
        config = self.config = self.weights.config
        compute, step = self.spec.compute, PADDED_STEP if self.graph else STEP
        tables = (*config.extra_embeddings,)
        self.layout = RowLayout(self.spec.reading, config.most_tokens, tables, step)
        self.request, self.tensor = self.model.create_infer_request(), openvino_core().Tensor
        self.threads = int(self.model.get_property("INFERENCE_NUM_THREADS"))
        self.places = tuple(compute.device.replace("auto", "cpu").split(","))
        self.budget = compute.batch_tokens or BUDGET

    def batches(self, texts: Tokens, budget: int) -> Iterator[Places]:
        """Yield texts of each length of rows, the longest first.

        Those that are equally long stand side by side, and are pooled together.
        """
        reading = self.spec.reading
        counts, rows = np.array(reading.counts(texts)), self.layout.lengths(texts.lengths)
        order = np.argsort(-texts.lengths, kind="stable")
        for length in sorted({*rows.tolist()}, reverse=True):
            alike = order[rows[order] == length]
            size = budget // max(1, length)
            if reading.terms:
                size = min(size, SCORED // max(1, length))
            elif reading.token is not None:  # each of them becomes a row of logits
                size = min(size, SCORED // max(1, int(counts[alike].max())))
            size = max(1, size)
            for start in range(0, len(alike), size):
                yield alike[start : start + size]

    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Run a batch of texts whose rows have one length."""
        inputs = dict(enumerate(map(self.tensor, self.layout.of(batch))))
        (states,) = self.request.infer(inputs, False, False).values()  # packed, and copied
        rows: Kept = finish(InGraph(), states, self.spec.reading.counts(batch))
        return lambda: rows

    def facts(self) -> dict[str, Any]:
        """Return what decides the numbers: threads do not."""
        digests = {}
        if self.graph:
            files = (self.graph, self.graph.with_suffix(".bin"))
            digests["graph"] = {path.name: sha256(path) for path in files}
        return {
            "backend": self.backend,
            "openvino": openvino_core().get_version(),
            "cpu": cpu_features(),
            "dtype": self.dtype,
            **digests,
            "kernel": self.layout.form,
            "device": "cpu",
            "threads": None,
            "batch_tokens": self.budget,
        }


def open_compiled(spec: ModelSpec, tell: Tell = SILENCE) -> CompiledModel:
    """Make the graph of a folder's model and compile it for this CPU.

    Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
    choice that this model or this engine cannot follow, OpenvinoError where OpenVINO is not
    installed, or cannot run the model.
    """
    compute = spec.compute
    if reason := compute.beyond_openvino:
        raise UsageError(f"{reason} is not possible with --backend openvino", "use --backend torch")
    core, dtype = core_for_cpu(), "float32" if compute.dtype == "auto" else compute.dtype
    if dtype == "bfloat16" and not has_bfloat16():
        tell.warn("this CPU has no bfloat16 arithmetic: computing in float32")
        dtype = "float32"
    config, made, file = read_config(spec.folder), None, graph_file(spec)
    layers = spec.reading.indices(config.depth)
    if file:
        if spec.pooler or spec.reading.terms or layers != [config.depth]:
            raise ModelError(
                f"{file}: holds the last layer alone, without pooler or scores of words",
                "use the model that it was exported from",
            )
        weights, made = Weights(config, spec.kind, {}), partial(output_of_file, path=file)
    else:
        pooler = bool(spec.pooler) if spec.kind == "BertModel" else None
        weights = read_weights(spec.folder, spec.kind, pooler)
    graph = built(OpenvinoNetwork(weights), spec, made)
    try:
        model = core.compile_model(graph, "CPU", settings(dtype, compute.threads))
    except RuntimeError as failed:
        reason = str(failed).strip().splitlines()[-1]
        raise OpenvinoError(f"OpenVINO cannot compile the model: {reason}") from None
    return CompiledModel(model, weights, spec, dtype, file)


# --- the graphs of others ---


def graph_file(spec: ModelSpec) -> Path | None:
    """Return the file with the graph that is run, where it is not made of weights.

    Raises UsageError for --dtype int8 without a graph in 8 bits.
    """
    if spec.compute.dtype != "int8":
        files = find_weights(spec.folder)
        return files.files[0] if files.format == "openvino" else None
    file = spec.folder / GRAPHS["int8"]
    if not file.is_file():
        raise UsageError(
            f"{spec.folder}: no 8-bit model, which --dtype int8 runs",
            "bertcli export -m MODEL -o DIR --dtype int8 makes one; then -m DIR",
        )
    return file


def output_of_file(net: OpenvinoNetwork, batch: Batch, path: Path) -> Node:
    """Return what the graph of a file makes of a batch: states [T, hidden], or logits.

    Logits of whole texts are [B, ...], others [T, ...]. Raises ModelError for a file that is
    broken, or has other inputs, outputs or sizes than this model.
    """
    try:
        graph = net.core.Core().read_model(str(path))
    except RuntimeError as failed:
        reason = str(failed).strip().splitlines()[-1]
        raise ModelError(f"{path}: not a whole graph of OpenVINO: {reason}", AGAIN) from None
    ids, types = (batch.in_rows(net("Squeeze", x, [0])) for x in (batch.ids, batch.types))
    inputs = dict(zip(PADDED, (ids, batch.real, types), strict=True))
    for parameter in graph.get_parameters():
        name = next(iter(parameter.output(0).get_names()), parameter.get_friendly_name())
        if name not in inputs:
            raise _unfit(path, f"it has an unknown input {name} (known: {', '.join(PADDED)})")
        kind = parameter.get_element_type().get_type_name()
        parameter.output(0).replace(net("Convert", inputs[name], destination_type=kind))
    ends = [result.input_value(0) for result in graph.get_results()]
    outputs = {name: end for end in ends for name in end.get_names()}
    name = STATES if net.weights.kind == "BertModel" else LOGITS
    if name not in outputs:
        raise _unfit(path, f"it has no output {name} (but {', '.join(sorted(outputs)) or 'none'})")
    x, config, parts = outputs[name], net.config, HEAD_PARTS[net.weights.kind]
    width = config.vocab_size if parts.words else parts.outputs or config.num_labels
    width = config.hidden_size if name == STATES else width
    shape = x.get_partial_shape()
    if shape.rank.is_dynamic or not shape[len(shape) - 1].compatible(net.core.Dimension(width)):
        raise _unfit(path, f"config.json says {width} numbers a row, its {name} is {shape}")
    if len(shape) < 3:
        return x
    return batch.packed(net("Reshape", x, [-1, width]))


def _unfit(path: Path, why: str) -> ModelError:
    return ModelError(f"{path}: not the graph of this model: {why}", "export the model again")
