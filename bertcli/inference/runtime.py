"""A model, opened once: for vectors, for every task, and for attention maps.

    runtime = Runtime.open(ModelSpec(folder, BertModel, Compute(dtype="bfloat16")))
    vectors = result_of(runtime.runner.run([Tokens((101, 102), (0, 0))], finish))

Nobody else puts a tokenizer, a config, weights and a device together. What can be told before the
weights are read is told before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Generic

import torch

from bertcli.checkpoints.load import load, read_config
from bertcli.checkpoints.load_report import LoadReport
from bertcli.errors import ModelError, UsageError
from bertcli.inference.devices import devices, dtype_of, put, slow, use_threads
from bertcli.inference.encoder import Encoder, M, Reading, Runner
from bertcli.inference.options import Compute
from bertcli.inference.pool import ProcessPool
from bertcli.models.calibration_sample import SAMPLE, drawn
from bertcli.models.config import BertConfig
from bertcli.models.surgery import prepare
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.tokenizer import Tokenizer

Warn = Callable[[str], None]


@dataclass(frozen=True)
class ModelSpec(Generic[M]):
    """What is to be opened. The processes of a pool are sent it as it is."""

    folder: Path  # with config.json in it
    kind: type[M]
    compute: Compute = field(default_factory=Compute)
    reading: Reading = field(default_factory=Reading)
    pooler: bool | None = None  # of a BertModel: None is yes if there are weights for it
    parse_special: bool = True
    prepared: bool = True  # whether the linear layers are made fast


@dataclass(frozen=True)
class Runtime(Generic[M]):
    """A model that is open. ``runner`` is its encoder, or a pool of processes that have one each.

    The weights in ``encoder`` are not kept where other processes run the model.
    """

    spec: ModelSpec[M]
    tokenizer: Tokenizer
    encoder: Encoder[M]
    report: LoadReport  # what the files hold, also beyond the model
    runner: Runner
    devices: tuple[torch.device, ...]
    threads: int  # of all processes together

    @classmethod
    def open(cls, spec: ModelSpec[M], warn: Warn = lambda message: None) -> Runtime[M]:
        """Load a model, on as many devices as are named.

        Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
        choice that this model or this machine cannot follow.
        """
        tokenizer = Tokenizer.load(spec.folder, parse_special=spec.parse_special)
        for message in tokenizer.warnings:
            warn(message)
        refuse_unfit(spec.folder, read_config(spec.folder), tokenizer)
        threads = use_threads(spec.compute.threads)
        places = _of_one_kind(spec.compute.device)
        if message := slow(dtype_of(spec.compute.dtype), places[0]):
            warn(message)
        if len(places) == 1:
            encoder, report = _loaded(spec, tokenizer, places[0])
            return cls(spec, tokenizer, encoder, report, encoder, places, threads)
        pool = _pool(spec, places, max(1, threads // len(places)))
        try:
            encoder, report = _loaded(spec, tokenizer, places[0], elsewhere=True)
        except BaseException:
            pool.close()
            raise
        return cls(spec, tokenizer, encoder, report, pool, places, threads)

    @property
    def config(self) -> BertConfig:
        """The config, as it is loaded."""
        return self.encoder.bert.config

    def close(self) -> None:
        """End the processes of a pool now, and not with the program."""
        if isinstance(self.runner, ProcessPool):
            self.runner.close()

    def max_length(self, asked: int | None, meant: int | None, instead: str = "") -> int:
        """Return how many tokens a text may have: as asked, as the folder means it, or what fits.

        Raises UsageError when more are asked for than the model has positions.
        """
        fits = self.config.max_position_embeddings
        if asked is not None and asked > fits:
            raise UsageError(
                f"--max-length {asked} is more than the {fits} positions of this model",
                f"give at most {fits}{instead}",
            )
        return asked or min(meant or self.tokenizer.limit or fits, fits)


def open_encoder(spec: ModelSpec[M]) -> Encoder[M]:
    """Load a model in a process of a pool, whose parent has checked it and says what is wrong."""
    use_threads(spec.compute.threads)
    tokenizer = Tokenizer.load(spec.folder, parse_special=spec.parse_special)
    return _loaded(spec, tokenizer, devices(spec.compute.device)[0])[0]


def _loaded(
    spec: ModelSpec[M], tokenizer: Tokenizer, device: torch.device, *, elsewhere: bool = False
) -> tuple[Encoder[M], LoadReport]:
    """Read the weights; where other processes run the model, only to see that they can."""
    dtype = dtype_of(spec.compute.dtype)
    model, report = load(spec.folder, spec.kind, pooler=spec.pooler, dtype=dtype)
    put(model, torch.device("cpu") if elsewhere else device)
    encoder = Encoder(model, spec.reading, budget_of(spec.compute, device), device)
    if spec.prepared:
        sample = calibration_sample(spec.compute, tokenizer, encoder.bert.config)
        encoder.linear = prepare(encoder.bert, spec.compute.dtype, device, sample)
    if elsewhere:
        del encoder.bert.encoder.layer[:]
        model.to("meta")
    return encoder, report


def _pool(spec: ModelSpec[M], places: Sequence[torch.device], threads: int) -> ProcessPool:
    """Start a process per device, each with so many threads."""
    computes = [replace(spec.compute, device=str(place), threads=threads) for place in places]
    openers = [partial(open_encoder, replace(spec, compute=compute)) for compute in computes]
    names = [compute.device for compute in computes]
    return ProcessPool(names, openers, threads, budget_of(spec.compute, places[0]))


def _of_one_kind(names: str) -> tuple[torch.device, ...]:
    """Return the devices that are named. Raises UsageError for devices of several kinds."""
    found = tuple(devices(names))
    if len({place.type for place in found}) > 1:
        raise UsageError(
            f"--device {names} names devices of several kinds",
            "their results differ in the last digits; name devices of one kind",
        )
    return found


def budget_of(compute: Compute, device: torch.device) -> int:
    """Return the tokens of a batch: few enough for a CPU's cache, or many for a GPU."""
    return compute.batch_tokens or (4096 if device.type == "cpu" else 1 << 16)


def calibration_sample(
    compute: Compute, tokenizer: Tokenizer, config: BertConfig
) -> list[Sequence[int]]:
    """Return the token ids of texts that show the range of activations, if int8 needs them."""
    if compute.dtype != "int8":
        return []
    encoded = tokenizer.encode([Record(text) for text in SAMPLE], Layout())
    sample = [item.columns["input_ids"] for item in encoded]
    return [*sample, *drawn(config.vocab_size, sample[0])]


def refuse_unfit(folder: Path, config: BertConfig, tokenizer: Tokenizer) -> None:
    """Raise ModelError for a model that cannot take any text as this tokenizer encodes it.

    A checkpoint may hold a tokenizer with more tokens than embeddings: tokens were added, and the
    model was not resized. transformers loads it, and fails at the first such token.
    """
    if config.extra_embeddings:
        names = ", ".join(config.extra_embeddings)
        raise ModelError(
            f"{folder}: the model has extra embeddings ({names}), and needs an id for each token",
            "no command can give these ids; in Python: model(ids, extra={name: ids, ...})",
        )
    if beyond := tokenizer.beyond(config.vocab_size):
        token, index = beyond
        raise ModelError(
            f"{folder}: token {token!r} has id {index}, but the model has "
            f"{config.vocab_size} word embeddings; its tokenizer has "
            f"{tokenizer.vocabulary_size} tokens",
            "resize the model's embeddings and save it again, or remove the added tokens",
        )
    types = max(tokenizer.core.encode("a").type_ids, default=0)
    if types >= config.type_vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer gives texts token type {types}, but the model has "
            f"{_types(config.type_vocab_size)}",
            "use the tokenizer that belongs to this model",
        )


def refuse_pairs(batch: Sequence[Encoded], rows: int) -> None:
    """Raise ModelError for a pair whose token types a model with so many embeddings lacks."""
    for item in batch:
        if item.record.pair is None:
            continue
        types = max(item.columns["token_type_ids"], default=0)
        if types >= rows:
            raise ModelError(
                f"{item.record.where}: a text pair has token type {types}, but the model has "
                f"{_types(rows)}",
                "give single texts, or use a model that was trained on pairs",
            )


def _types(count: int) -> str:
    return f"{count} token type embedding{'s' if count > 1 else ''} (type_vocab_size)"
