"""Models that are tables of token vectors, opened as any other: no torch, no graph.

    table = read_table(folder)
    table.means(ids, offsets)      # the mean over the tokens of each text [B, D]

The table stays in its file, mapped into memory: only the rows of tokens that occur are read. A
vector is added up token by token in the order of its text, STEP tokens at a time, so that its bits
do not depend on other texts. Weights of terms from a table need no more than the ids of tokens, so
nothing is run for them. Letters: `B` texts, `T` tokens of all of them, `V` rows, `D` dimensions.
Source: sentence-transformers 6.2, StaticEmbedding; model2vec 0.10, StaticModel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.checkpoints.scan import TERM_TABLE, bert_folder, is_model2vec, require_weights
from bertcli.checkpoints.stored_tensor import mapped
from bertcli.checkpoints.tensors import read_tensors
from bertcli.errors import ModelError
from bertcli.files.typed_json import parse
from bertcli.inference.runner import Arriving, Device, Finish, Kept, Runner, Tokens
from bertcli.inference.runtime import UNLIMITED, ModelSpec, Runtime
from bertcli.models.config import BertConfig
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

ROWS = ("embedding.weight", "embeddings")  # of sentence-transformers, of model2vec
TOGETHER = 256  # texts whose sums fit into the cache of a CPU
STEP = 64  # tokens whose sum is a part of the whole: rounding errors of long sums add up
LONG = 1024  # tokens of a text that are added up with those of others; a multiple of STEP


@dataclass(frozen=True, eq=False)
class StaticTable:
    """The vectors of tokens; ``mapping`` and ``weights`` are of vocabularies that were reduced."""

    rows: np.ndarray  # [V, D], float32, float16 or int8
    mapping: np.ndarray | None = None  # token id -> row
    weights: np.ndarray | None = None  # of each token id

    @property
    def width(self) -> int:
        """The number of dimensions."""
        return int(self.rows.shape[1])

    @property
    def tokens(self) -> int:
        """The number of token ids that have a vector."""
        lengths = [len(array) for array in (self.mapping, self.weights) if array is not None]
        return min(lengths, default=len(self.rows))

    def means(self, ids: np.ndarray, offsets: Places) -> np.ndarray:
        """Return the mean over the tokens of each text [B, D], from ids [T] and offsets [B + 1].

        That of a text without tokens is zero.
        """
        lengths = np.diff(offsets)
        order = np.argsort(-lengths, kind="stable")
        vectors = np.empty((len(lengths), self.width), np.float32)
        for start in range(0, len(order), TOGETHER):
            rows = order[start : start + TOGETHER]
            sums = self._sums(ids, offsets[rows], lengths[rows])
            vectors[rows] = sums / np.maximum(lengths[rows], 1)[:, None].astype(np.float32)
        return vectors

    def _sums(self, ids: np.ndarray, starts: Places, lengths: Places) -> np.ndarray:
        """Return the sums over the tokens of texts, the longest first."""
        sums = np.zeros((len(lengths), self.width), np.float32)
        places = np.arange(min(int(lengths[0]), LONG))
        counts = np.searchsorted(-lengths, -places, "left").tolist()  # of texts that are longer
        for start in range(0, len(places), STEP):
            parts = np.zeros((counts[start], self.width), np.float32)
            for place, count in enumerate(counts[start : start + STEP], start):
                parts[:count] += self._vectors(ids[starts[:count] + place])
            sums[: len(parts)] += parts
        for at in range(int((lengths > LONG).sum())):
            tokens = ids[starts[at] : starts[at] + lengths[at]]
            for place in range(LONG, len(tokens), STEP):
                sums[at] += self._vectors(tokens[place : place + STEP]).sum(0)
        return sums

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        """Return the vector of each token [n, D]."""
        which = ids if self.mapping is None else self.mapping[ids]
        vectors = np.asarray(np.take(self.rows, which, 0), np.float32)
        return vectors if self.weights is None else vectors * self.weights[ids][:, None]


def read_table(folder: Path) -> StaticTable:
    """Open the table of a folder. ModelError when it is incomplete, or no such table."""
    files = require_weights(folder)
    tensors = {array.name: array for array in read_tensors(files)}
    name = next((name for name in ROWS if name in tensors), None)
    if name is None:
        names = ", ".join([*tensors][:8]) or "nothing"
        raise ModelError(
            f"{files.files[0]}: no table of token vectors ({' or '.join(ROWS)})", f"it has {names}"
        )
    rows = mapped(tensors[name])
    mapping = mapped(tensors["mapping"]) if "mapping" in tensors else None
    weights = mapped(tensors["weights"]) if "weights" in tensors else None
    flat = all(array is None or array.ndim == 1 for array in (mapping, weights))
    if rows.ndim != 2 or not rows.size or not flat:
        raise ModelError(f"{files.files[0]}: {name} is no table, or what belongs to it is no list")
    if mapping is not None and not 0 <= int(mapping.min()) <= int(mapping.max()) < len(rows):
        raise ModelError(f"{files.files[0]}: mapping names rows that {name} does not have")
    if weights is not None:
        weights = np.array(weights, np.float32)
    return StaticTable(rows, mapping, weights)


SIZES: dict[str, Any] = {  # that others ask for: there is no layer, and types make no difference
    "num_hidden_layers": 0,
    "max_position_embeddings": UNLIMITED,
    "type_vocab_size": 256,
}


@dataclass(frozen=True)
class StaticDevice(Device):
    """Takes the mean of the vectors of each text's tokens; without a table, nothing: [0, 2]."""

    table: StaticTable | None = None
    dropped: int | None = None  # the id of unknown words, which count for nothing
    where = "cpu"

    def batches(self, texts: Tokens, budget: int) -> list[Places]:
        """Return all texts as one batch."""
        return [np.arange(len(texts))]

    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Compute what is kept of each text; nothing else is made of it."""
        ids, offsets = batch.ids, batch.offsets
        if self.dropped is not None and (unknown := ids == self.dropped).any():
            offsets = offsets - np.append(0, unknown.cumsum())[offsets]
            ids = ids[~unknown]
        nothing = [np.zeros((0, 2), np.float32)] * len(batch)
        vectors: Kept = self.table.means(ids, offsets) if self.table else nothing
        return lambda: vectors


def open_static(spec: ModelSpec, tokenizer: Tokenizer) -> Runtime:
    """Open the table. ModelError when it is incomplete, or not the tokenizer's."""
    facts: dict[str, Any] = {"backend": "none", "dtype": "float32", "device": "cpu"}
    if spec.kind == TERM_TABLE:  # read by who makes terms of tokens
        device = StaticDevice()
        config = BertConfig(len(tokenizer), hidden_size=1, num_attention_heads=1, **SIZES)
    else:
        folder = bert_folder(spec.folder)
        table = read_table(folder)
        if beyond := tokenizer.beyond(table.tokens):
            token, index = beyond
            raise ModelError(
                f"{folder}: token {token!r} has id {index}, but the model has {table.tokens} "
                "token vectors",
                "use the tokenizer that belongs to this model",
            )
        device = StaticDevice(table, unknown_id(tokenizer) if is_model2vec(spec.folder) else None)
        drops = {"drops_unknown": device.dropped is not None}
        facts = {"backend": "static", "dtype": "float32", **drops, "device": "cpu"}
        config = BertConfig(vocab_size=table.tokens, hidden_size=table.width, **SIZES)
    runner = Runner([device], 0)
    return Runtime(spec, tokenizer, config, runner, ("cpu",), 1, lambda: facts, same_bits=True)


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of unknown words; None where there is none."""
    core = tokenizer.core
    if hasattr(core.model, "unk_token"):
        token = core.model.unk_token
        index = None if token is None else core.token_to_id(token)
    else:  # Unigram
        index = parse(core.to_str())["model"].get("unk_id")
    return index
