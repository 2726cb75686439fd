"""The CPU engine: OpenVINO runs the graph that is made of a model's weights whenever it is opened.

Each text is a row of a length that follows from its own alone, at most an eighth longer: so a
vector depends on its text alone, to the last bit, in whatever batch, order and number of threads.
The rows of a batch have one length. There are few lengths for OpenVINO to prepare itself for, which
takes it longer than a small batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.engines.compute import (
    Backend,
    OpenvinoError,
    cpu_features,
    has_bfloat16,
    openvino_core,
    settings,
)
from bertcli.engines.engine import (
    Arriving,
    Engine,
    Finish,
    Kept,
    ModelSpec,
    Reading,
    Tokens,
    combined,
)
from bertcli.engines.openvino_graph import (
    IDS,
    LOGITS,
    MASK,
    READ,
    STATES,
    TYPES,
    Node,
    OpenvinoNetwork,
    built,
)
from bertcli.errors import LOG, ModelError, UsageError, option, out_of_memory
from bertcli.families.structure import HEAD_PARTS
from bertcli.io.paths import sha256
from bertcli.model_folder.files import GRAPHS
from bertcli.model_folder.weights import Weights, read_weights
from bertcli.tokenizing.batch import EXTRA

if TYPE_CHECKING:
    from bertcli.engines.engine import Places

    Inputs = dict[str, np.ndarray]

BUDGET = 4096  # tokens of a batch: few enough for the cache of a CPU
SCORED = 256  # tokens of a batch whose whole vocabulary is scored
LAST_STATES = Reading()
OTHER_NAMES = {STATES: "token_embeddings"}  # of outputs, as optimum calls them in sentence models


def rows_of(lengths: Places, longest: int) -> Places:
    """Return the lengths of the rows of texts, eight between a power of two and the next.

    A model that takes no more than ``longest`` tokens has no positions behind them.
    """
    steps = 1 << np.maximum(np.frexp(lengths)[1] - 4, 0)
    return np.minimum(lengths + -lengths % steps, np.maximum(lengths, longest))


def inputs_of(texts: Tokens, longest: int, reading: Reading = LAST_STATES) -> Inputs:
    """Return the inputs of a graph by name: int64 [B, L], for texts with rows of this length."""
    columns, tokens, attended = reading.padded(texts, int(rows_of(texts.lengths[:1], longest)[0]))
    names = (IDS, TYPES, *(f"{EXTRA}{name}" for name in texts.extra))
    return dict(zip(names, columns, strict=True)) | {
        MASK: attended.astype(np.int64),
        READ: tokens.take(reading.places(texts)),
    }


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
        self.config, compute = self.weights.config, self.spec.compute
        self.names = {next(iter(value.get_names())) for value in self.model.inputs}
        self.request, self.tensor = self.model.create_infer_request(), openvino_core().Tensor
        self.threads = int(self.model.get_property("INFERENCE_NUM_THREADS"))
        self.places = tuple(compute.device.replace("auto", "cpu").split(","))
        self.budget = compute.batch_tokens or BUDGET

    def packed_logits(self, outputs: np.ndarray) -> np.ndarray:
        """Return what the head in the graph gave."""
        return outputs

    pool_first = packed_logits  # as of the model of torch, for `Finish`

    def batches(self, texts: Tokens, budget: int) -> Iterator[Places]:
        """Yield texts whose rows have one length, the longest first; equal ones stand together."""
        rows = rows_of(texts.lengths, self.config.most_tokens)
        order = np.argsort(-texts.lengths, kind="stable")
        ends = np.flatnonzero(np.diff(rows[order])) + 1
        for same in np.split(order, ends) if len(order) else ():
            size = budget // max(1, int(rows[same[0]]))
            if HEAD_PARTS[self.spec.kind].words:
                size = min(size, SCORED // max(1, *self.spec.reading.counts(texts.take(same))))
            size = max(1, size)
            yield from np.split(same, range(size, len(same), size))

    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Run a batch of texts whose rows have one length."""
        arrays = inputs_of(batch, self.config.most_tokens, self.spec.reading)
        inputs = {name: self.tensor(arrays[name]) for name in self.names}
        layers = [*self.request.infer(inputs, False, False).values()]  # copied
        reading = self.spec.reading
        rows: Kept = finish(self, combined(layers, reading.combine), reading.counts(batch))
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
            "kernel": "rows of eight lengths an octave",
            "device": "cpu",
            "threads": None,
            "batch_tokens": self.budget,
        }


def open_compiled(spec: ModelSpec, meanwhile: Callable[[], object]) -> CompiledModel:
    """Make the graph of a folder's model, and compile it for this CPU.

    That takes OpenVINO a third of a short run, and no Python: other work is done ``meanwhile``.
    Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
    choice that this model or this engine cannot follow, OpenvinoError where OpenVINO is not
    installed, or cannot run the model.
    """
    compute = spec.compute
    if reason := compute.beyond_openvino:
        raise UsageError(
            f"{reason} is not possible with {option('backend', 'openvino')}",
            f"use {option('backend', 'torch')}",
        )
    core, dtype = openvino_core().Core(), "float32" if compute.dtype == "auto" else compute.dtype
    if dtype == "bfloat16" and not has_bfloat16():
        LOG.warn("this CPU has no bfloat16 arithmetic: computing in float32")
        dtype = "float32"
    config = spec.folder.config
    file = graph_file(spec)
    if file:
        depth = config.num_hidden_layers
        if spec.pooler or spec.reading.indices(depth) != [depth]:
            raise ModelError(
                f"{file}: holds the last layer alone, without pooler",
                "use the model that it was exported from",
            )
        weights = Weights(config, spec.kind, {})
    else:
        weights = read_weights(spec.folder, spec.kind, spec.pooler)
    net = OpenvinoNetwork(weights)
    graph = built(net, spec, output_of_file(net, file) if file else None)
    chosen = settings(dtype, compute.threads)
    # With the memory of the net, also where nobody waits for this.
    compiling = ThreadPoolExecutor(1).submit(
        lambda: (core.compile_model(graph, "CPU", chosen), net)
    )
    meanwhile()
    try:
        model, _ = compiling.result()
    except RuntimeError as failed:
        if out_of_memory(failed):
            raise
        reason = str(failed).strip().splitlines()[-1]
        raise OpenvinoError(f"OpenVINO cannot compile the model: {reason}") from None
    return CompiledModel(model, weights, spec, dtype, file)


# --- the graphs of others ---


def graph_file(spec: ModelSpec) -> Path | None:
    """Return the file with the graph that is run, where it is not made of weights.

    Raises UsageError for --dtype int8 without a graph in 8 bits.
    """
    if spec.compute.dtype != "int8":
        files = spec.folder.weights
        return files.files[0] if files.format == "openvino" else None
    file = spec.folder / GRAPHS["int8"]
    if not file.is_file():
        raise UsageError(
            f"{spec.folder}: no 8-bit model, which {option('dtype', 'int8')} runs",
            "bertcli export -m MODEL -o DIR --dtype int8 makes one; then -m DIR",
        )
    return file


def output_of_file(net: OpenvinoNetwork, path: Path) -> Node:
    """Return what the graph of a file makes of a batch: states [B, L, hidden], or logits.

    Logits of whole texts are [B, ...], others [B, L, ...]. Raises ModelError for a file that is
    broken, or has other inputs, outputs or sizes than this model.
    """
    config, kind, parts = net.config, net.weights.kind, HEAD_PARTS[net.weights.kind]
    name, width = STATES, config.hidden_size
    if kind != "BertModel":
        name = LOGITS
        width = config.vocab_size if parts.words else parts.outputs or config.num_labels
    try:
        graph = net.core.Core().read_model(str(path))
        for parameter in graph.get_parameters():
            node = net.inputs[parameter.output(0).get_any_name()].output(0)
            kind = parameter.get_element_type().get_type_name()
            parameter.output(0).replace(net("Convert", node, destination_type=kind))
        ends = [result.input_value(0) for result in graph.get_results()]
        x = next(end for end in ends if end.get_names() & {name, OTHER_NAMES.get(name)})
        last = list(x.get_partial_shape())[-1]
        if not last.compatible(net.core.Dimension(width)):
            raise LookupError(f"config.json says {width} numbers a row, it gives {last}")
    except (RuntimeError, LookupError, StopIteration) as failed:
        reason = str(failed).strip().splitlines() or [f"no output {name}"]
        raise ModelError(
            f"{path}: not the graph of this model: {reason[-1]}", "export the model again"
        ) from None
    return x
