"""Models that are tables of token vectors, opened as any other: no torch, no graph.

    table = read_table(folder)
    table.rows[table.mapping[ids]]     # the vectors of tokens, of a vocabulary that was reduced

The table stays in its file, mapped into memory: only the rows of tokens that occur are read. A
vector is added up text by text, so that its bits do not depend on others. Weights of terms from a
table need no more than the ids of tokens, so nothing is run for them. Letters: `B` texts, `T`
tokens of all of them, `V` rows, `D` dimensions.
Source: sentence-transformers 6.2, StaticEmbedding; model2vec 0.10, StaticModel.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bertcli.engines.engine import Arriving, Engine, Finish, ModelSpec, Tokens
from bertcli.errors import ModelError
from bertcli.families.structure import BERT
from bertcli.io.typed_json import LARGEST_NUMBER, parse
from bertcli.model_folder.files import MODEL2VEC_TABLE, TERM_TABLE
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.tensors import as_float32, mapped, read_tensors
from bertcli.models.config import BertConfig
from bertcli.tokenizing.tokenizer import Tokenizer

ROWS = ("embedding.weight", MODEL2VEC_TABLE)  # of sentence-transformers, of model2vec
STEP = 64  # tokens whose sum is a part of the whole: rounding errors of long sums add up


@dataclass(eq=False)
class StaticTable(Engine):
    """The vectors of tokens; ``mapping`` and ``weights`` are of vocabularies that were reduced."""

    rows: np.ndarray  # [V, D], float32, float16 or int8
    mapping: np.ndarray | None = None  # token id -> row
    weights: np.ndarray | None = None  # of each token id
    dropped: int | None = None  # the id of unknown words, where they count for nothing
    budget = LARGEST_NUMBER  # all texts are one batch

    def __post_init__(self) -> None:
        by_token = [self.rows if self.mapping is None else self.mapping, self.weights]
        self.config = BertConfig(  # there is no layer, and types make no difference
            vocab_size=min(len(array) for array in by_token if array is not None),  # with a vector
            hidden_size=self.rows.shape[1],
            num_hidden_layers=0,
            max_position_embeddings=LARGEST_NUMBER,
            type_vocab_size=256,
            structure=BERT,  # these are values of fields, not keys of a file
        )

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        """Return the vector of each token [n, D]."""
        which = ids if self.mapping is None else self.mapping[ids]
        vectors = np.asarray(np.take(self.rows, which, 0), np.float32)
        return vectors if self.weights is None else vectors * self.weights[ids][:, None]

    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Take the mean over the tokens of each text, zero without tokens; that is all of it."""
        vectors = np.zeros((len(batch), self.config.hidden_size), np.float32)
        for vector, (start, end) in zip(vectors, pairwise(batch.offsets.tolist()), strict=True):
            ids = batch.ids[start:end]
            if self.dropped is not None:
                ids = ids[ids != self.dropped]
            for first in range(0, len(ids), STEP):
                vector += np.add.reduce(self._vectors(ids[first : first + STEP]), 0)
            vector /= max(len(ids), 1)
        return lambda: vectors

    def facts(self) -> dict[str, Any]:
        """Return what decides the numbers."""
        return {
            "backend": "static",
            "dtype": "float32",
            "drops_unknown": self.dropped is not None,
            "device": "cpu",
        }


def read_table(folder: ModelFolder) -> StaticTable:
    """Open the table of a folder. ModelError when it is incomplete, or no such table."""
    files = folder.require_weights()
    tensors = {array.name: array for array in read_tensors(files)}
    name = next((name for name in ROWS if name in tensors), None)
    if name is None:
        names = ", ".join([*tensors][:8]) or "nothing"
        raise ModelError(
            f"{files.files[0]}: no table of token vectors ({' or '.join(ROWS)})", f"it has {names}"
        )
    rows = mapped(tensors[name])
    if tensors[name].dtype == "F64":
        rows = as_float32(rows, tensors[name])
    lists = {name: mapped(tensors[name]) for name in ("mapping", "weights") if name in tensors}
    if rows.ndim != 2 or not rows.size or any(array.ndim != 1 for array in lists.values()):
        raise ModelError(f"{files.files[0]}: {name} is no table, or what belongs to it is no list")
    mapping, weights = lists.get("mapping"), lists.get("weights")
    if mapping is not None and not 0 <= int(mapping.min()) <= int(mapping.max()) < len(rows):
        raise ModelError(f"{files.files[0]}: mapping names rows that {name} does not have")
    if weights is not None:
        weights = as_float32(weights, tensors["weights"]).copy()
    return StaticTable(rows, mapping, weights)


def open_static(spec: ModelSpec, tokenizer: Tokenizer) -> StaticTable:
    """Open the table. ModelError when it is incomplete, or not the tokenizer's."""
    if spec.kind == TERM_TABLE:  # read by who makes terms of tokens
        ids = tokenizer.core.get_vocab().values()  # of which some may lie beyond their number
        return StaticTable(np.zeros((1 + max(ids, default=0), 0), np.float32))
    folder = spec.folder.encoder
    table = read_table(folder)
    tokenizer.refuse_beyond(table.config.vocab_size, folder)
    table.dropped = unknown_id(tokenizer) if spec.folder.is_model2vec else None
    return table


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of unknown words; None where there is none."""
    core = tokenizer.core
    if hasattr(core.model, "unk_token"):
        token = core.model.unk_token
        index = None if token is None else core.token_to_id(token)
    else:  # Unigram
        index = parse(core.to_str())["model"].get("unk_id")
    return index
