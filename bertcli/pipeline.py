"""Texts to vectors: records are tokenized, run in batches by length, pooled, and come in order.

    embedder = Embedder.open(find_model("all-MiniLM-L6-v2", files=MODEL_FILES), Options())
    run = embedder.run(Reader(Source(texts=("I love NLP!",))))
    for window in embedder.embed(run):
        for item in window:
            print(item.encoded.record.text, item.vector)

What a vector is made of is settled when the model is opened: ``Embedder.chosen`` says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bertcli.devices import devices, dtype_of, slow
from bertcli.encoder import Encoder, Reading, Tokens, first_tokens
from bertcli.encoding import Encoded, Layout
from bertcli.errors import InputError, ModelError, UsageError
from bertcli.hub import ModelFolder
from bertcli.model.bert import BertModel
from bertcli.model.checkpoint import load
from bertcli.model.sample import SAMPLE
from bertcli.model.surgery import prepare
from bertcli.pooling import check_dim, finish, pool, pool_windows
from bertcli.records import Reader, Record, Text
from bertcli.sentence import Sentence, read_sentence
from bertcli.tokenizer import Tokenizer
from bertcli.tokenizing import Run

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("input_ids", "token_type_ids")
BUDGETS = {"cpu": 4096}  # tokens of a batch; small enough for a CPU's cache
LARGE = 1 << 16  # tokens of a batch elsewhere


@dataclass(frozen=True)
class Options:
    """What a user may choose. None, or auto, means what the model's folder says."""

    pooling: str = "auto"
    layers: tuple[int, ...] = (-1,)
    combine: str = "mean"
    normalize: bool | None = None
    dim: int | None = None
    max_length: int | None = None
    on_truncate: str = "warn"
    stride: int = 0
    prompt: str | None = None
    prompt_name: str | None = None
    special_tokens: bool = True
    parse_special: bool = True
    device: str = "auto"
    dtype: str = "auto"
    batch_tokens: int | None = None
    window: int = 4096


class Embedded(NamedTuple):
    """A record, its tokens, and its vector [D], or [k, D] with stacked layers."""

    encoded: Encoded
    vector: np.ndarray


@dataclass(frozen=True)
class Embedder:
    """A model that is ready to turn records into vectors."""

    folder: ModelFolder
    tokenizer: Tokenizer
    encoder: Encoder
    options: Options
    sentence: Sentence

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        options: Options,
        warn: Callable[[str], None] = lambda message: None,
    ) -> Embedder:
        """Load a model and settle how its vectors are made.

        Raises ModelError for a folder that is not a whole BERT, UsageError for a choice that this
        model or this machine cannot follow.
        """
        sentence = read_sentence(folder.path, pooling=options.pooling)
        options = settled(options, sentence)
        inner = folder.path / sentence.transformer
        tokenizer = Tokenizer.load(inner, parse_special=options.parse_special)
        for message in tokenizer.warnings:
            warn(message)
        device, dtype = devices(options.device)[0], dtype_of(options.dtype)
        if message := slow(dtype, device):
            warn(message)
        model, _ = load(inner, BertModel, pooler=options.pooling == "pooler", dtype=dtype)
        scaled = SAMPLE if options.dtype == "int8" else ()
        sample = tokenizer.encode([Record(text) for text in scaled], Layout(columns=COLUMNS))
        ids = [item.columns["input_ids"] for item in sample]
        linear = prepare(model.to(device), options.dtype, device, ids)
        encoder = Encoder(
            model,
            Reading(options.layers, options.combine, _reads_first(options, sentence)),
            options.batch_tokens or BUDGETS.get(device.type, LARGE),
            device,
            warn,
            linear,
        )
        embedder = cls(folder, tokenizer, encoder, options, sentence)
        if options.dim is not None:
            check_dim(options.dim, embedder.width)
        return embedder

    @property
    def modes(self) -> tuple[str, ...]:
        """The poolings whose vectors are put one behind the other."""
        return tuple(self.options.pooling.split("+"))

    @property
    def width(self) -> int:
        """The number of dimensions of a vector before it is cut to ``dim``."""
        states = self.encoder.model.config.hidden_size
        if self.options.combine == "concat":
            states *= len(self.options.layers)
        return states * len(self.modes)

    @property
    def max_length(self) -> int:
        """The number of tokens, special ones included, that a text is cut to."""
        fits = self.encoder.model.config.max_position_embeddings
        asked = self.options.max_length or self.sentence.max_length or self.tokenizer.limit or fits
        if asked > fits:
            raise UsageError(
                f"--max-length {asked} is more than the {fits} positions of this model",
                f"give at most {fits}, or --on-truncate window",
            )
        return asked

    @property
    def layout(self) -> Layout:
        """How texts become tokens."""
        window = self.options.on_truncate == "window"
        return Layout(
            columns=COLUMNS,
            special_tokens=self.options.special_tokens,
            max_length=self.max_length,
            truncation="longest_first",
            stride=self.options.stride if window else 0,
            overflowing=window,
        )

    def run(self, reader: Reader, *, full: bool = False) -> Run:
        """Return the tokenized records of a reader, in windows.

        Windows that are ``full`` do not depend on how fast the records came, so the vectors of a
        run that is resumed are the same to the last bit.
        """
        return Run(
            reader, self.tokenizer, self.layout, self.options.window, full=full, prepare=self._text
        )

    def embed(self, run: Run) -> Iterator[list[Embedded]]:
        """Yield the records of each window with their vectors, in input order.

        Raises InputError for a text that is too long with ``on_truncate="error"``, ModelError for a
        vector that is not finite.
        """
        for batch in run:
            if self.options.on_truncate == "error":
                _refuse_cut(batch, self.max_length)
            yield self.vectors(batch)

    def vectors(self, batch: Sequence[Encoded]) -> list[Embedded]:
        """Return the items with their vectors; the windows of one record become one item."""
        texts = [tokens_of(item) for item in batch]
        pooled = torch.stack(self.encoder.run(texts, self._pool)) if texts else torch.zeros(0)
        records = [list(same) for _, same in groupby(batch, key=lambda item: item.sample)]
        special = self.tokenizer.core.num_special_tokens_to_add(False)
        weights = [max(1.0, float(item.length - special)) for item in batch]
        joined = pool_windows(pooled, [len(windows) for windows in records], weights)
        normalize = bool(self.options.normalize)
        found = finish(joined, dim=self.options.dim, normalize=normalize).numpy()
        items = [windows[0] for windows in records]
        _refuse_infinite(items, found)
        return [Embedded(item, vector) for item, vector in zip(items, found, strict=True)]

    def chosen(self) -> dict[str, Any]:
        """Return what decides the numbers of a vector, for manifests and for the curious."""
        options, weight = self.options, self.encoder.model.embeddings.word_embeddings.weight
        return {
            "pooling": options.pooling,
            "layers": list(options.layers),
            "layer_combine": options.combine,
            "normalize": options.normalize,
            "dim": options.dim,
            "max_length": self.max_length,
            "on_truncate": options.on_truncate,
            "stride": options.stride,
            "prompt": options.prompt,
            "special_tokens": options.special_tokens,
            "parse_special": options.parse_special,
            "dtype": "int8" if self.encoder.linear == "int8" else str(weight.dtype)[6:],
            "kernel": self.encoder.kernel,
            "linear": self.encoder.linear,
            "device": str(self.encoder.device),
            "batch_tokens": self.encoder.budget,
            "window": options.window,
        }

    def _text(self, record: Record) -> Record:
        """Put the prompt before a text, and lower its case where the folder asks for it."""
        prompt, lower = self.options.prompt or "", self.sentence.lower_case
        if not (prompt or lower):
            return record
        text, pair = record.text, record.pair
        text = [*prompt.split(), *text] if isinstance(text, list) else prompt + text
        if lower:
            text, pair = _lower(text), None if pair is None else _lower(pair)
        return record._replace(text=text, pair=pair)

    def _pool(self, states: Tensor, lengths: Sequence[int]) -> Tensor:
        """Make one vector of each text's states."""
        if self.options.pooling == "pooler":
            vectors: Tensor = self.encoder.model.pooler(first_tokens(states, lengths))
            return vectors.float()
        skip = None
        if self.options.prompt and not self.sentence.include_prompt:
            skip = [self._prompt_tokens] * len(lengths)
        return pool(states, lengths, self.modes, skip)

    @cached_property
    def _prompt_tokens(self) -> int:
        """The tokens of [CLS] and the prompt, as sentence-transformers counts them."""
        prompt = Record(self.options.prompt or "")
        layout = replace(self.layout, truncation="do_not_truncate", overflowing=False)
        length = self.tokenizer.encode([prompt], layout)[0].length
        return length - 1 if self.options.special_tokens else length  # less the [SEP]


def settled(options: Options, sentence: Sentence) -> Options:
    """Return the options with what the folder says in place of auto and None."""
    pooling = options.pooling
    if pooling == "auto":
        pooling = "+".join(sentence.pooling or ("mean",))
    return replace(
        options,
        pooling=pooling,
        normalize=sentence.normalize if options.normalize is None else options.normalize,
        dim=options.dim or sentence.dim,
        prompt=sentence.prompt(options.prompt, options.prompt_name),
    )


def _reads_first(options: Options, sentence: Sentence) -> bool:
    """Say whether vectors are made of first tokens alone."""
    skips = bool(options.prompt) and not sentence.include_prompt
    return options.pooling in ("cls", "pooler") and not skips


def _lower(text: Text) -> Text:
    return [word.lower() for word in text] if isinstance(text, list) else text.lower()


def tokens_of(item: Encoded) -> Tokens:
    """Return an item as the model takes it."""
    return Tokens(tuple(item.columns["input_ids"]), tuple(item.columns["token_type_ids"]))


def _refuse_cut(batch: Sequence[Encoded], limit: int) -> None:
    for item in batch:
        if item.cut:
            raise InputError(
                f"{item.record.where}: {item.length + item.cut} tokens, and {limit} is the limit",
                "--on-truncate warn cuts texts, window encodes all of them",
            )


def _refuse_infinite(items: Sequence[Encoded], vectors: np.ndarray) -> None:
    import numpy as np

    finite = np.isfinite(vectors).reshape(len(items), -1).all(axis=1)
    if not finite.all():
        record = items[int(finite.argmin())].record
        raise ModelError(
            f"{record.where}: its vector holds NaN or infinity",
            "bertcli inspect --verify checks the weights; float16 overflows, float32 does not",
        )
