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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.checkpoints.scan import GRAPHS, find_weights, read_config
from bertcli.checkpoints.weights import Weights, read_weights
from bertcli.errors import ModelError, UsageError, out_of_memory
from bertcli.files.paths import sha256
from bertcli.inference.compute import cpu_features, several
from bertcli.inference.graph import OpenvinoNetwork, built
from bertcli.inference.openvino import (
    OpenvinoError,
    core_for_cpu,
    has_bfloat16,
    openvino_core,
    settings,
)
from bertcli.inference.padded_graph import output_of_file
from bertcli.inference.progress import SILENCE, Tell
from bertcli.inference.runner import Arriving, Device, Finish, Kept, Runner, Tokens
from bertcli.inference.runtime import ModelSpec, Runtime, TokenizerLoader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.inference.runner import Places, Reading, Tokens

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
        arrays = (*flat[:3], rows, self._attended(texts), read)
        extra = [flat[3:]] if self.tables else []
        return [np.ascontiguousarray(array, np.int32) for array in (*arrays, *extra)]

    def _attended(self, texts: Tokens) -> Places:
        if self.reading.idle is None:
            return texts.lengths
        attended = self.reading.attended(texts)
        return np.diff(np.append(0, attended.cumsum())[texts.offsets])


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
class CompiledModel(Device):
    """A compiled model, run by this process over texts whose rows have one length."""

    model: Any  # of OpenVINO
    weights: Weights  # whose memory it shares
    spec: ModelSpec
    where = "cpu"

    def __post_init__(self) -> None:
        config = self.weights.config
        tables = (*config.extra_embeddings,)
        step = STEP if self.weights.arrays else PADDED_STEP
        self.layout = RowLayout(self.spec.reading, config.most_tokens, tables, step)
        self.request, self.tensor = self.model.create_infer_request(), openvino_core().Tensor

    @property
    def threads(self) -> int:
        """The threads that it takes."""
        return int(self.model.get_property("INFERENCE_NUM_THREADS"))

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


def open_compiled(spec: ModelSpec, tokenizer: TokenizerLoader, tell: Tell = SILENCE) -> Runtime:
    """Make the graph of a folder's model and compile it for this CPU.

    Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
    choice that this model or this engine cannot follow, OpenvinoError where OpenVINO is not
    installed, or cannot run the model.
    """
    compute = spec.compute
    if compute.dtype == "bfloat16" and not has_bfloat16():
        tell.warn("this CPU has no bfloat16 arithmetic: computing in float32")
        compute = replace(compute, dtype="float32")
    dtype = "float32" if compute.dtype == "auto" else compute.dtype
    spec = replace(spec, compute=replace(compute, dtype=dtype))
    if reason := unable(spec):
        raise UsageError(f"{reason} is not possible with --backend openvino", "use --backend torch")
    places = tuple(compute.device.replace("auto", "cpu").split(","))
    if spec.one_device and len(places) > 1:
        raise several(compute.device, "name one of them")
    model, stored = compiled_model(spec), graph_file(spec)
    runner, threads = Runner([model], budget_of(spec)), model.threads
    if len(places) > 1:
        from bertcli.inference.pool import process_runner  # with multiprocessing: a late import

        share = replace(spec.compute, threads=max(1, threads // len(places)))
        opener = partial(open_runner, replace(spec, compute=share))
        runner = process_runner([(place, opener) for place in places], budget_of(spec))

    def facts() -> dict[str, Any]:
        return {
            "backend": "openvino",
            "openvino": openvino_core().get_version(),
            "cpu": cpu_features(),
            "dtype": dtype,
            **({"graph": digests_of_graph(stored)} if stored else {}),
            "kernel": model.layout.form,
            "device": "cpu",
            "threads": None,  # the numbers do not depend on them
            "batch_tokens": budget_of(spec),
        }

    config = model.weights.config
    return Runtime(spec, tokenizer(), config, runner, places, threads, facts, same_bits=True)


def budget_of(spec: ModelSpec) -> int:
    """Return the tokens of a batch."""
    return spec.compute.batch_tokens or BUDGET


def open_runner(spec: ModelSpec) -> Runner:
    """Open a model in this process. Errors are those of `open_compiled`."""
    return Runner([compiled_model(spec)], budget_of(spec))


def compiled_model(spec: ModelSpec) -> CompiledModel:
    """Make the graph of a model and compile it."""
    spec.reading.indices(read_config(spec.folder).depth)
    core, properties = core_for_cpu(), settings(spec.compute.dtype, spec.compute.threads)
    pooler = bool(spec.pooler) if spec.kind == "BertModel" else None
    stored = graph_file(spec)
    if stored:
        weights = Weights(read_config(spec.folder), spec.kind, {})
        graph = built(OpenvinoNetwork(weights), spec, partial(output_of_file, path=stored))
    else:
        weights = read_weights(spec.folder, spec.kind, pooler)
        graph = built(OpenvinoNetwork(weights), spec)
    try:
        model = core.compile_model(graph, "CPU", properties)
    except (RuntimeError, MemoryError) as failed:
        if out_of_memory(failed):
            raise OpenvinoError("out of memory: the model itself does not fit") from None
        reason = str(failed).strip().splitlines()[-1]
        raise OpenvinoError(f"OpenVINO cannot compile the model: {reason}") from None
    return CompiledModel(model, weights, spec)


def graph_file(spec: ModelSpec) -> Path | None:
    """Return the file with the graph that is run, where it is not made of weights.

    Raises UsageError for --dtype int8 without a graph in 8 bits, ModelError for a reading that
    only weights allow.
    """
    place = spec.folder / GRAPHS["int8"]
    if spec.compute.dtype == "int8" and not place.is_file():
        raise UsageError(
            f"{spec.folder}: no 8-bit model, which --dtype int8 runs",
            "bertcli export -m MODEL -o DIR --dtype int8 makes one; then -m DIR",
        )
    if spec.compute.dtype != "int8":
        files = find_weights(spec.folder)
        if files.format != "openvino":
            return None
        place = files.files[0]
    reading, depth = spec.reading, read_config(spec.folder).depth
    if spec.pooler or reading.terms or reading.indices(depth) != [depth]:
        raise ModelError(
            f"{place}: holds the last layer alone, without pooler or scores of words",
            "use the model that it was exported from",
        )
    return place


def digests_of_graph(file: Path) -> dict[str, str]:
    """Return the sha256 of the files of a graph, by name."""
    return {path.name: sha256(path) for path in (file, file.with_suffix(".bin"))}


def unable(spec: ModelSpec) -> str:
    """Return the choice that OpenVINO cannot follow, "" for none."""
    compute = spec.compute
    if not {*compute.device.split(",")} <= {"auto", "cpu"}:
        return f"--device {compute.device}"
    return f"--dtype {compute.dtype}" if compute.dtype == "float16" else ""
