"""The CPU engine: a BertModel compiled by OpenVINO, which no torch is needed for once it is made.

A compiled model is kept in `compiled_cache`, by a digest of everything that it depends on: weights,
config, what is read off the model, versions, the CPU. `compiling` makes it.

Texts whose rows have one length make a batch (`rows`): a vector depends on its text alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from os.path import abspath
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.checkpoints.scan import find_config, read_config, require_weights
from bertcli.errors import UsageError, out_of_memory
from bertcli.files.versions import __version__
from bertcli.inference.compiled_cache import CompiledModel, cached, digest_of
from bertcli.inference.cpu_features import cpu_features
from bertcli.inference.early_start import under_way
from bertcli.inference.model_import import ModelImport
from bertcli.inference.openvino import (
    OpenvinoError,
    has_bfloat16,
    openvino_core,
    openvino_version,
    settings,
)
from bertcli.inference.options import several
from bertcli.inference.rows import FORM, RowLayout
from bertcli.inference.runner import BatchRunner, Finish, Kept, Runner, Tokens
from bertcli.inference.runtime import ModelSpec, Runtime, TokenizerLoader
from bertcli.inference.tell import SILENCE, Tell

if TYPE_CHECKING:
    from bertcli.inference.runner import Places

BUDGET = 4096  # tokens of a batch: few enough for the cache of a CPU
MARKED = 256  # tokens of a batch whose whole vocabulary is scored


class InGraph:
    """The model as `Finish` sees it: its pooler and its head are compiled with it."""

    def pooler(self, first: np.ndarray) -> np.ndarray:
        """Return what the compiled pooler gave."""
        return first

    packed_logits = pooler  # and what the compiled head gave


@dataclass
class CompiledRunner(BatchRunner):
    """A compiled model, run by this process over texts whose rows have one length."""

    model: Any  # of OpenVINO
    made: CompiledModel  # what it reads its weights from
    spec: ModelSpec
    threads: int
    budget: int
    where = "cpu"

    def __post_init__(self) -> None:
        self.layout = RowLayout(self.spec.reading, read_config(self.spec.folder).most_tokens)
        self.request, self.tensor = self.model.create_infer_request(), openvino_core().Tensor
        if "bertcli.cli.app" in sys.modules:  # to free a model at the end takes 25 ms, but
            self.circle = self  # the process of a command frees all at once

    def counted(self, texts: Tokens) -> Places:
        """Return the lengths of the rows."""
        return self.layout.lengths(texts.lengths)

    def groups(self, texts: Tokens, budget: int) -> Iterator[tuple[Places, int]]:
        """Yield the texts of each length of rows, the longest first.

        Those that are equally long stand side by side, and are pooled together.
        """
        counts, lengths = np.array(self._read(texts)), self.counted(texts)
        order = np.argsort(-texts.lengths, kind="stable")
        for length in sorted({*lengths.tolist()}, reverse=True):
            alike = order[lengths[order] == length]
            most = budget
            if self.spec.reading.token is not None:  # each of them becomes a row of logits
                most = min(budget, int(MARKED // max(1, counts[alike].max()) * length))
            yield alike, most

    def vectors(self, batch: Tokens, finish: Finish) -> Kept:
        """Run a batch of texts whose rows have one length."""
        given = dict(enumerate(map(self.tensor, self.layout.of(batch))))
        (states,) = self.request.infer(given, False, False).values()  # packed, and copied
        kept: Kept = finish(InGraph(), states, self._read(batch))
        return kept

    def _read(self, texts: Tokens) -> list[int]:
        """Return how many tokens are read of each text."""
        return [1] * len(texts) if self.spec.pooler else self.spec.reading.counts(texts)


@dataclass(frozen=True)
class CompiledRuntime(Runtime):
    """A model that OpenVINO runs."""

    made: CompiledModel

    @classmethod
    def open(
        cls, spec: ModelSpec, tokenizer: TokenizerLoader, tell: Tell = SILENCE
    ) -> CompiledRuntime:
        """Load the compiled model of a folder, or make it; and meanwhile its tokenizer.

        Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
        choice that this model or this engine cannot follow, OpenvinoError where OpenVINO is not
        installed, or cannot run the model.
        """
        compute = replace(spec.compute, dtype=_dtype(spec.compute.dtype, tell))
        spec = replace(spec, compute=compute)
        if reason := unable(spec):
            raise UsageError(
                f"{reason} is not possible with --backend openvino", "use --backend torch"
            )
        places = tuple(compute.device.replace("auto", "cpu").split(","))
        if spec.one_device and len(places) > 1:
            raise several(compute.device, "name one of them")
        config = read_config(spec.folder)
        spec.reading.indices(config.depth)
        first = _runner(spec, tell, tokenizer)
        runner: Runner = first
        threads = runner.threads
        if len(places) > 1:
            from bertcli.inference.pool import ProcessPool  # with multiprocessing: a late import

            each = replace(spec, compute=replace(compute, threads=max(1, threads // len(places))))
            openers = [partial(_runner, each)] * len(places)
            runner = ProcessPool(places, openers, max(1, threads // len(places)), budget_of(spec))
        return cls(spec, tokenizer(), config, runner, places, threads, first.made)

    @property
    def same_bits(self) -> bool:
        """Whether a vector depends on its text alone, as was tried when the model was compiled."""
        return self.made.same_bits

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the numbers of this runner, for manifests."""
        return {
            "backend": "openvino",
            "openvino": openvino_version(),
            "cpu": cpu_features(),
            "dtype": self.spec.compute.dtype,
            **({"accuracy": self.made.accuracy} if self.made.accuracy else {}),
            "kernel": FORM,
            "linear": "compiled",
            "device": "cpu",
            "threads": None,  # the numbers do not depend on them
            "batch_tokens": budget_of(self.spec),
        }


def budget_of(spec: ModelSpec) -> int:
    """Return the tokens of a batch."""
    return spec.compute.batch_tokens or BUDGET


def _runner(
    spec: ModelSpec, tell: Tell = SILENCE, besides: Callable[[], object] = lambda: None
) -> CompiledRunner:
    """Open the compiled model in this process; it is made where it is not kept.

    What there is to do ``besides`` is done while it is read, or before it is made.
    """
    about, count = described(spec), spec.compute.threads
    given = (
        about["settings"]
        if count is None
        else {**about["settings"], "INFERENCE_NUM_THREADS": count}
    )
    key, make = _key(about), partial(_made, spec, tell, besides)
    reading = under_way(key, given)
    for again in (False, True):
        reading = reading or ModelImport(cached(key, about, make, tell, again=again), given)
        besides()
        try:
            model = reading.model()
        except (RuntimeError, MemoryError) as failed:
            if out_of_memory(failed):
                raise OpenvinoError("out of memory: the model itself does not fit") from None
            reading = None
            continue
        threads = int(model.get_property("INFERENCE_NUM_THREADS"))
        return CompiledRunner(model, reading.made, spec, threads, budget_of(spec))
    raise OpenvinoError(f"{spec.folder}: OpenVINO refuses the model that it has compiled")


def _dtype(asked: str, tell: Tell) -> str:
    """Return the number format that is computed in, which this CPU has."""
    if asked == "bfloat16" and not has_bfloat16():
        tell.warn("this CPU has no bfloat16 arithmetic: computing in float32")
        return "float32"
    return "float32" if asked == "auto" else asked


def described(spec: ModelSpec) -> dict[str, Any]:
    """Return everything that a compiled model depends on."""
    weights = require_weights(spec.folder)
    config = find_config(spec.folder)
    files = [*weights.all, *([config] if config else [])]
    return {
        "model": abspath(spec.folder),  # seen from anywhere
        "files": {path.name: digest_of(path) for path in files},
        "kind": spec.kind,
        "reading": asdict(spec.reading),
        "pooler": bool(spec.pooler),
        "bertcli": __version__,
        "graph": FORM,
        "openvino": openvino_version(),
        "dtype": spec.compute.dtype,
        "settings": settings(spec.compute.dtype),
        "cpu": cpu_features(),
    }


def _key(about: dict[str, Any]) -> str:
    text = json.dumps({**about, "model": None}, sort_keys=True)  # wherever it lies
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def unable(spec: ModelSpec) -> str:
    """Return the choice that OpenVINO cannot follow, "" for none."""
    compute = spec.compute
    if read_config(spec.folder).extra_embeddings:
        return "a model with extra embeddings"
    if not {*compute.device.split(",")} <= {"auto", "cpu"}:
        return f"--device {compute.device}"
    if spec.reading.idle is not None:
        return "query expansion without attention to it"
    if spec.kind == "BertForMaskedLM" and spec.reading.token is None:
        return "--sparse"
    return f"--dtype {compute.dtype}" if compute.dtype == "float16" else ""


def _made(spec: ModelSpec, tell: Tell, besides: Callable[[], object]) -> CompiledModel:
    from bertcli.inference.compiling import compiled

    besides()
    return compiled(spec, tell)
