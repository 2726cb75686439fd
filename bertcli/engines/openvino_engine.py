"""The CPU engine: OpenVINO compiles and runs the graph that is built from a model's weights.

A graph that is built here in float32 takes packed texts. Those of files take padded texts, and so
do graphs of bfloat16, whose attention has not been shown to give the same bits with more padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.engines.compute import (
    Backend,
    OpenvinoError,
    compile_settings,
    cpu_features,
    has_bfloat16,
    openvino_core,
)
from bertcli.engines.engine import (
    MODEL_COLUMNS,
    Engine,
    ModelSpec,
    Outputs,
    PackedTokens,
    Reduction,
    WaitForOutputs,
    combine_layers,
)
from bertcli.engines.openvino_graph import (
    LOGITS,
    STATES,
    TYPES,
    Node,
    OpenvinoNetwork,
    build_graph,
)
from bertcli.engines.openvino_inputs import BatchLayout, PackedTexts, PaddedTexts
from bertcli.errors import LOG, ModelError, UsageError, option, out_of_memory
from bertcli.families.structure import HEAD_PARTS
from bertcli.formats.row_offsets import offsets_of
from bertcli.model_folder.files import GRAPH_FORMATS, GRAPHS, graph_files
from bertcli.model_folder.weights import Weights, read_weights

if TYPE_CHECKING:
    from bertcli.engines.engine import Indices

TOKENS_PER_BATCH = 2048  # they fit the cache of a CPU core
SCORED_TOKENS_PER_BATCH = 256  # tokens of a batch with scores of the whole vocabulary
# CPUs, as `cpu_features` says, whose bits the tests have compared: others are tested when opening.
PACKED_CPUS = {"x86_64 X86_V3"}
OPTIMUM_NAMES = {STATES: "token_embeddings"}  # output -> its name in sentence models of optimum
# The ONNX operation whose 8-bit range is that of the whole batch.
DYNAMIC_RANGE = b"DynamicQuantizeLinear"


@dataclass
class CompiledModel(Engine):
    """A compiled model, which this process runs."""

    model: Any  # openvino.CompiledModel
    graph: Any  # openvino.Model
    weights: Weights  # the graph uses their memory
    spec: ModelSpec
    dtype: str
    graph_file: Path | None  # None if the graph was built from weights
    layout: BatchLayout
    backend: Backend = "openvino"

    def __post_init__(self) -> None:
        compute = self.spec.compute
        self.config = self.weights.config
        self.input_names = {next(iter(value.get_names())) for value in self.model.inputs}
        self.request = self.model.create_infer_request()
        self.tensor_class = openvino_core().Tensor
        self.threads = int(self.model.get_property("INFERENCE_NUM_THREADS"))
        self.devices = tuple(compute.device.replace("auto", "cpu").split(","))
        self.budget = compute.batch_tokens or TOKENS_PER_BATCH

    def parallel_engines(self) -> list[Engine]:
        """Return an engine for each further request that the compiled model runs at once."""
        return [replace(self) for _ in range(int(self.model.get_property("NUM_STREAMS")) - 1)]

    def compiled_for_parallel(self) -> Engine:
        """Return an engine with the same model, compiled to run several batches at once."""
        properties = compile_settings(self.dtype, self.spec.compute.threads, parallel=True)
        return replace(self, model=compile_graph(self.graph, properties))

    def packed_logits(self, outputs: np.ndarray) -> np.ndarray:
        """Return the outputs: the head is part of the graph."""
        return outputs

    pool_first = packed_logits  # a `Reduction` calls it as that of a torch model

    def batches(self, tokens: PackedTokens, budget: int) -> Iterator[Indices]:
        """Yield the batches of the layout, smaller where scores of the vocabulary are read."""
        for batch in self.layout.batches(tokens, budget):
            size = len(batch)
            if HEAD_PARTS[self.spec.architecture].words:
                most_scored = max(1, *self.spec.selection.row_counts(tokens.take(batch)))
                size = max(1, SCORED_TOKENS_PER_BATCH // most_scored)
            yield from np.split(batch, range(size, len(batch), size))

    def start(self, batch: PackedTokens, reduction: Reduction) -> WaitForOutputs:
        """Run a batch that `batches` has formed."""
        arrays = self.layout.inputs(batch, self.spec.selection)
        inputs = {name: self.tensor_class(arrays[name]) for name in self.input_names}
        layers = list(self.request.infer(inputs, False, False).values())  # copies
        selection = self.spec.selection
        states = combine_layers(layers, selection.combine)
        outputs: Outputs = reduction(self, states, selection.row_counts(batch))
        return lambda: outputs

    def facts(self) -> dict[str, Any]:
        """Return the facts that determine the outputs; the number of threads is not one of them."""
        digests = {}
        if self.graph_file:
            digests["graph"] = graph_files(self.graph_file).digests
        return {
            "backend": self.backend,
            "openvino": openvino_core().get_version(),
            "cpu": cpu_features(),
            "dtype": self.dtype,
            **digests,
            "kernel": self.layout.kernel,
            "device": "cpu",
            "threads": None,
            "batch_tokens": self.budget,
        }


def open_compiled(spec: ModelSpec, meanwhile: Callable[[], object]) -> CompiledModel:
    """Build the graph of a folder's model, and compile it for this CPU.

    Compiling takes a third of a short run, without the GIL: ``meanwhile`` is called during it.
    Raises ModelError for a folder without a complete model of this class, UsageError for options
    that the model or the engine does not support, OpenvinoError if OpenVINO is not installed or
    cannot run the model.
    """
    compute = spec.compute
    if reason := compute.unsupported_by_openvino:
        raise UsageError(
            f"{reason} is not possible with {option('backend', 'openvino')}",
            f"use {option('backend', 'torch')}",
        )
    dtype = "float32" if compute.dtype == "auto" else compute.dtype
    if dtype == "bfloat16" and not has_bfloat16():
        LOG.warn("this CPU has no bfloat16 arithmetic: computing in float32")
        dtype = "float32"
    config = spec.folder.config
    file = graph_file(spec)
    if file:
        last_layer = config.num_hidden_layers
        if spec.pooler or spec.selection.layer_indices(last_layer) != [last_layer]:
            raise ModelError(
                f"{file}: holds the last layer alone, without pooler",
                "use the model that it was exported from",
            )
        weights = Weights(config, spec.architecture, {})
    else:
        weights = read_weights(spec.folder, spec.architecture, spec.pooler)
    is_packed = not file and dtype == "float32"
    engine = _compiled(spec, weights, dtype, file, is_packed, meanwhile)
    if is_packed and cpu_features() not in PACKED_CPUS and not keeps_bits(engine):
        LOG.detail("on this CPU packed texts change the bits of others: texts are padded")
        engine = _compiled(spec, weights, dtype, file, False, lambda: None)
    return engine


def _compiled(
    spec: ModelSpec,
    weights: Weights,
    dtype: str,
    file: Path | None,
    is_packed: bool,
    meanwhile: Callable[[], object],
) -> CompiledModel:
    """Return the compiled graph of a file, or of weights. Raises as `open_compiled` does."""
    compute = spec.compute
    net = OpenvinoNetwork(weights, is_packed=is_packed)
    graph = build_graph(net, spec, output_of_file(net, file) if file else None)
    properties = compile_settings(dtype, compute.threads, parallel=compute.parallel is True)
    # The result refers to the net, which owns the memory, in case nobody waits for it.
    compiling = ThreadPoolExecutor(1).submit(lambda: (compile_graph(graph, properties), net))
    meanwhile()
    try:
        model, _ = compiling.result()
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[-1]
        raise OpenvinoError(f"OpenVINO cannot compile the model: {reason}") from None
    layout: BatchLayout = PackedTexts()
    if not is_packed:
        alone = bool(file and has_dynamic_ranges(file))
        layout = PaddedTexts(net.config.most_tokens, alone=alone)
    return CompiledModel(model, graph, weights, spec, dtype, file, layout)


def keeps_bits(engine: CompiledModel) -> bool:
    """Return True if a short text has the same states beside a longer one as alone.

    A test of the CPU, whose instructions decide in which order attention adds.
    """
    config = engine.config
    selection = engine.spec.selection
    longest = min(20, config.most_tokens)
    lengths = np.array([longest, min(5, longest)])
    ids = np.arange(lengths.sum()) % config.vocab_size
    if selection.token_id is not None:
        ids[:] = selection.token_id
    columns = np.zeros((len(ids), len(MODEL_COLUMNS) + len(config.extra_embeddings)), np.uint32)
    columns[:, 0] = ids
    first_tokens = np.zeros(len(lengths), np.int64)
    texts = PackedTokens(
        columns, offsets_of(lengths), [*config.extra_embeddings], read=first_tokens
    )
    alone = texts.take(np.array([1]))
    states, states_alone = (
        engine.start(batch, lambda model, states, counts: states)() for batch in (texts, alone)
    )
    return np.array_equal(states[-len(states_alone) :], states_alone)


def compile_graph(graph: Any, properties: Mapping[str, str | int]) -> Any:
    """Return a graph (openvino.Model) compiled for this CPU."""
    return openvino_core().Core().compile_model(graph, "CPU", dict(properties))


# --- graphs in files ---


def graph_file(spec: ModelSpec) -> Path | None:
    """Return the file of the graph to run; None if the graph is built from weights.

    Raises UsageError for --dtype int8 if the folder has no 8-bit graph.
    """
    if spec.compute.dtype != "int8":
        weights_index = spec.folder.weights
        return weights_index.files[0] if weights_index.format in GRAPH_FORMATS else None
    file = spec.folder / GRAPHS["int8"]
    if not file.is_file():
        raise UsageError(
            f"{spec.folder}: no 8-bit model, which {option('dtype', 'int8')} runs",
            "bertcli export -m MODEL -o DIR --dtype int8 makes one; then -m DIR",
        )
    return file


def has_dynamic_ranges(path: Path) -> bool:
    """Return True for an ONNX graph that is quantized by the range of each batch."""
    if path.suffix != ".onnx":
        return False
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(DYNAMIC_RANGE) >= 0


def output_of_file(net: OpenvinoNetwork, path: Path) -> Node:
    """Connect the graph of a file to the inputs of the net; return its output.

    That is the hidden states [B, L, hidden], or the logits: of texts [B, ...], of tokens [B, L,
    ...]. Raises ModelError for a file that is broken, or has other inputs, outputs or sizes than
    the model.
    """
    name = LOGITS
    parts = HEAD_PARTS[net.weights.architecture]
    if net.weights.architecture == "BertModel":
        name = STATES
        width = net.config.hidden_size
    elif parts.words:
        width = net.config.vocab_size
    else:
        width = parts.outputs or net.config.num_labels
    outputs: list[Node] = []
    try:
        graph = net.core.Core().read_model(str(path))
        for parameter in graph.get_parameters():
            input_name = parameter.output(0).get_any_name()
            if input_name == TYPES and TYPES not in net.inputs:  # zeros, which the model ignores
                net.parameter(TYPES, 2)
            node = net.inputs[input_name].output(0)
            element_type = parameter.get_element_type().get_type_name()
            parameter.output(0).replace(net("Convert", node, destination_type=element_type))
        outputs = [result.input_value(0) for result in graph.get_results()]
        names = {name, OPTIMUM_NAMES.get(name)}
        output = next(output for output in outputs if output.get_names() & names)
        rank = output.get_partial_shape().rank
        last_axis = net.core.Dimension() if rank.is_dynamic else output.get_partial_shape()[-1]
        if not last_axis.compatible(net.core.Dimension(width)):
            raise LookupError(f"config.json says {width} numbers a row, it gives {last_axis}")
        output = net.float32(output)
        if name == STATES and last_axis.is_dynamic:
            output = net("Reshape", output, [0, 0, width])
    except (RuntimeError, LookupError, StopIteration) as error:
        found = ", ".join(sorted(name for output in outputs for name in output.get_names()))
        reason = str(error).strip().splitlines() or [f"no output {name}, but {found}"]
        raise ModelError(
            f"{path}: not the graph of this model: {reason[-1]}", "export the model again"
        ) from None
    return output
