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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bertcli.checkpoints.load import load, read_config
from bertcli.embedding.options import EmbedOptions, prepared, reads_first, settled
from bertcli.embedding.pooling import check_dim, finish, pool, pool_windows
from bertcli.embedding.sentence_config import Sentence, read_sentence
from bertcli.embedding.token_vectors import (
    PLACES,
    TOKEN_COLUMNS,
    TokenVectors,
    joined,
    portions,
    windows_of,
)
from bertcli.embedding.vector_checks import refuse_cut, refuse_empty, refuse_infinite
from bertcli.embedding.word_pooling import pool_words, words_of
from bertcli.errors import UsageError
from bertcli.hub import ModelFolder
from bertcli.inference.devices import device_and_dtype, put
from bertcli.inference.encoder import (
    Encoder,
    Reading,
    Tokens,
    budget_of,
    first_tokens,
    make_fast,
)
from bertcli.inference.fits import refuse_pairs, refuse_unfit
from bertcli.models.bert import BertModel
from bertcli.models.calibration_sample import one_thread
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.run import TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("input_ids", "token_type_ids")
TRIED = (2, 19)  # tokens of the texts that `same_bits` compares
HELD = 1 << 14  # tokens whose vectors are held at a time, where each has its own


class Embedded(NamedTuple):
    """A record, its tokens, and its vector [D], or [k, D] with stacked layers.

    Where each token or word has a vector, those are [L, D...], and ``pieces`` says of what.
    """

    encoded: Encoded
    vector: np.ndarray
    pieces: TokenVectors | None = None


@dataclass(frozen=True)
class Embedder:
    """A model that is ready to turn records into vectors."""

    folder: ModelFolder
    tokenizer: Tokenizer
    encoder: Encoder
    options: EmbedOptions
    sentence: Sentence

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        options: EmbedOptions,
        warn: Callable[[str], None] = lambda message: None,
        *,
        elsewhere: bool = False,
    ) -> Embedder:
        """Load a model and settle how its vectors are made.

        With ``elsewhere`` other processes run the model, and its weights are not kept here.
        Raises ModelError for a folder that is not a whole BERT, UsageError for a choice that this
        model or this machine cannot follow.
        """
        sentence = read_sentence(folder.path, pooling=options.pooling)
        options = settled(options, sentence)
        inner = folder.path / sentence.transformer
        tokenizer = Tokenizer.load(inner, parse_special=options.parse_special)
        for message in tokenizer.warnings:
            warn(message)
        refuse_unfit(inner, read_config(inner), tokenizer)
        device, dtype = device_and_dtype(options.device, options.dtype, warn)
        model, _ = load(inner, BertModel, pooler=options.pooling == "pooler", dtype=dtype)
        put(model, torch.device("cpu") if elsewhere else device)
        encoder = Encoder(
            model,
            Reading(options.layers, options.combine, reads_first(options, sentence)),
            budget_of(options.batch_tokens, device),
            device,
            warn,
            linear=make_fast(model, options.dtype, device, tokenizer),
        )
        embedder = cls(folder, tokenizer, encoder, options, sentence)
        if options.dim is not None:
            check_dim(options.dim, embedder.width)
        if elsewhere:
            del model.encoder.layer[:]
            model.to("meta")
        return embedder

    @property
    def width(self) -> int:
        """The number of dimensions of a vector before it is cut to ``dim``."""
        states = self.encoder.model.config.hidden_size
        if self.options.combine == "concat":
            states *= len(self.options.layers)
        return states * len(self.options.modes)

    @property
    def nothing(self) -> np.ndarray:
        """No vector, [0, D...]: what an empty input becomes."""
        import numpy as np

        *layers, width = self._shape
        size = width if self.options.dim is None else self.options.dim
        return np.zeros((0, *layers, size), np.float32)

    @property
    def threads(self) -> int | None:
        """The threads of a process where they compute: the last bits of a sum depend on them."""
        return torch.get_num_threads() if self.encoder.device.type == "cpu" else None

    @property
    def max_length(self) -> int:
        """The number of tokens, special ones included, that a text is cut to."""
        fits = self.encoder.model.config.max_position_embeddings
        asked = self.options.max_length
        if asked is not None and asked > fits:
            raise UsageError(
                f"--max-length {asked} is more than the {fits} positions of this model",
                f"give at most {fits}, or --on-truncate window",
            )
        return asked or min(self.sentence.max_length or self.tokenizer.limit or fits, fits)

    @cached_property
    def same_bits(self) -> bool:
        """Whether a vector depends on its text alone, to the last bit, with the kernels used here.

        Some kernels add up in another order by the number of rows or threads. Two texts are tried:
        each alone and on one thread, and both in a batch.
        """
        config, encoder = self.encoder.model.config, self.encoder
        lengths = [min(length, config.max_position_embeddings) for length in TRIED]
        ids = [tuple(7919 * at % config.vocab_size for at in range(length)) for length in lengths]
        texts = [Tokens(some, (0,) * len(some)) for some in ids]
        asked = encoder.budget, encoder.tick
        encoder.budget, encoder.tick = 2 * max(TRIED), lambda texts, tokens: None
        try:
            together = self.pooled(texts)
            with one_thread():
                alone = [self.pooled([text])[0] for text in texts]
        finally:
            encoder.budget, encoder.tick = asked
        return all(map(torch.equal, together, alone))

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of the vector of a token: [D], or [k, D]."""
        stacked = self.options.combine == "stack"
        return (len(self.options.layers), self.width) if stacked else (self.width,)

    @property
    def _columns(self) -> tuple[str, ...]:
        if not self.options.per_token:
            return COLUMNS
        words = ("word_ids",) if self.options.words else ()
        return (*COLUMNS, *TOKEN_COLUMNS, *words, PLACES)

    @property
    def layout(self) -> Layout:
        """How texts become tokens."""
        window = self.options.on_truncate == "window"
        return Layout(
            columns=self._columns,
            special_tokens=self.options.special_tokens,
            max_length=self.max_length,
            truncation="longest_first",
            stride=self.options.stride if window else 0,
            overflowing=window,
        )

    def run(self, reader: Reader, *, full: bool = False) -> TokenizeRun:
        """Return the tokenized records of a reader, in windows.

        Windows that are ``full`` do not depend on how fast the records came, so the vectors of a
        run that is resumed are the same to the last bit.
        """
        return TokenizeRun(
            reader,
            self.tokenizer,
            self.layout,
            self.options.window,
            full=full,
            prepare=self._text,
            background=True,
        )

    def embed(self, run: TokenizeRun) -> Iterator[list[Embedded]]:
        """Yield the records with their vectors, in input order.

        Raises InputError for a text that is too long with ``on_truncate="error"``, or has no token,
        ModelError for a vector that is not finite.
        """
        for batch in run:
            yield from self.embedded(batch)

    def embedded(self, batch: Sequence[Encoded]) -> Iterator[list[Embedded]]:
        """Yield the records of one window with their vectors, as many at a time as memory allows.

        How they are divided depends on the window alone.
        """
        refuse_pairs(batch, self.encoder.model.config.type_vocab_size)
        if self.options.on_truncate == "error":
            refuse_cut(batch, self.max_length)
        if not self.options.per_token:
            yield self.vectors(batch)
            return
        for records in portions(windows_of(batch), HELD):
            yield self._pieces(records)

    def vectors(self, batch: Sequence[Encoded]) -> list[Embedded]:
        """Return the items with a vector each; the windows of one record become one item."""
        refuse_empty(batch)
        texts = [tokens_of(item) for item in batch]
        pooled = torch.stack(self.pooled(texts)) if texts else torch.zeros(0)
        records = windows_of(batch)
        special = self.tokenizer.core.num_special_tokens_to_add(False)
        weights = [max(1.0, float(item.length - special)) for item in batch]
        found = self._finished(pool_windows(pooled, [len(some) for some in records], weights))
        items = [windows[0] for windows in records]
        refuse_infinite(items, found)
        return [Embedded(item, vector) for item, vector in zip(items, found, strict=True)]

    def _pieces(self, records: Sequence[Sequence[Encoded]]) -> list[Embedded]:
        """Return records, given as their windows, with the vectors of their tokens or words."""
        texts = [tokens_of(item) for windows in records for item in windows]
        states = iter(self.pooled([text for text in texts if text.ids]))
        nothing = torch.zeros(0, *self._shape)
        found = []
        for windows in records:
            vectors = [(next(states) if item.length else nothing).numpy() for item in windows]
            item, vector = joined(windows, vectors)
            pieces = TokenVectors.of_tokens(item)
            if self.options.words is not None:
                words = words_of(item._replace(record=self._text(item.record)))
                vector = pool_words(vector, words, self.options.words)
                pieces = TokenVectors.of_words(words)
            vector = self._finished(torch.from_numpy(vector))
            refuse_infinite([item], vector[None])
            found.append(Embedded(item, vector, pieces))
        return found

    def pooled(self, texts: Sequence[Tokens]) -> list[Tensor]:
        """Return what is kept of the states of each text, of which none is without tokens.

        That is a vector [D...], or the vectors of all tokens, [L, D...].
        """
        return self.encoder.run(texts, self._pool)

    def _finished(self, vectors: Tensor) -> np.ndarray:
        normalize = bool(self.options.normalize)
        found: np.ndarray = finish(vectors, dim=self.options.dim, normalize=normalize).numpy()
        return found

    def chosen(self) -> dict[str, Any]:
        """Return what decides the numbers of a vector, for manifests and for the curious."""
        options, weight = self.options, self.encoder.model.embeddings.word_embeddings.weight
        return {
            "pooling": options.pooling,
            "word_vectors": options.words,
            "layers": list(options.layers),
            "layer_combine": options.combine,
            "normalize": options.normalize,
            "dim": options.dim,
            "max_length": self.max_length,
            "on_truncate": options.on_truncate,
            "stride": options.stride,
            "prompt": options.prompt,
            "include_prompt": self.sentence.include_prompt,
            "lower_case": self.sentence.lower_case,
            "special_tokens": options.special_tokens,
            "parse_special": options.parse_special,
            "dtype": "int8" if self.encoder.linear == "int8" else str(weight.dtype)[6:],
            "kernel": self.encoder.kernel,
            "linear": self.encoder.linear,
            "device": self.encoder.device.type,  # devices of a kind give the same numbers
            "threads": self.threads,
            "batch_tokens": self.encoder.budget,
            "window": options.window,
        }

    def _text(self, record: Record) -> Record:
        """Return a record as it is tokenized: with the prompt, in lower case where it has to be."""
        return prepared(record, self.options.prompt or "", lower=self.sentence.lower_case)

    def _pool(self, states: Tensor, lengths: Sequence[int]) -> Sequence[Tensor] | Tensor:
        """Make one vector of each text's states, or keep those of all its tokens."""
        if self.options.pooling == "none":
            kept: Sequence[Tensor] = states.split(list(lengths))
            return kept
        if self.options.pooling == "pooler":
            vectors: Tensor = self.encoder.model.pooler(first_tokens(states, lengths))
            return vectors.float()
        skip = None
        if self.options.prompt and not self.sentence.include_prompt:
            skip = [self._prompt_tokens] * len(lengths)
        return pool(states, lengths, self.options.modes, skip)

    @cached_property
    def _prompt_tokens(self) -> int:
        """The tokens of [CLS] and the prompt, as sentence-transformers counts them."""
        prompt = Record(self.options.prompt or "")
        layout = replace(self.layout, truncation="do_not_truncate", overflowing=False)
        length = self.tokenizer.encode([prompt], layout)[0].length
        return length - 1 if self.options.special_tokens else length  # less the [SEP]


def tokens_of(item: Encoded) -> Tokens:
    """Return an item as the model takes it."""
    return Tokens(tuple(item.columns["input_ids"]), tuple(item.columns["token_type_ids"]))
