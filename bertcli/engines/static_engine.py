"""The static engine: models that are tables of token vectors, run by NumPy alone.

    table = read_table(folder)
    table.rows[table.mapping[ids]]     # the vectors of tokens, for a reduced vocabulary

The table is a mapped file: only the rows of tokens that occur are read. Vectors are summed text by
text, so that they are bit-identical in any batch. Tables of term weights need only token ids:
nothing is computed for them. Letters: `V` rows, `D` dimensions, `n` tokens.
Source: sentence-transformers 6.2, StaticEmbedding; model2vec 0.10, StaticModel.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bertcli.engines.engine import Engine, ModelSpec, PackedTokens, Reduction, WaitForOutputs
from bertcli.errors import ModelError
from bertcli.families.structure import BERT
from bertcli.io.typed_json import LARGEST_NUMBER, parse
from bertcli.model_folder.files import MODEL2VEC_TABLE, TERM_TABLE
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.tensors import as_float32, map_tensor, read_tensors
from bertcli.models.config import BertConfig
from bertcli.tokenizing.tokenizer import Tokenizer

TABLE_NAMES = ("embedding.weight", MODEL2VEC_TABLE)  # sentence-transformers, model2vec
TOKENS_PER_SUM = 64  # long texts are summed in steps, because rounding errors accumulate


@dataclass(eq=False)
class StaticTable(Engine):
    """The vectors of tokens; reduced vocabularies have a ``mapping`` and ``weights`` as well."""

    rows: np.ndarray  # [V, D], float32, float16 or int8
    mapping: np.ndarray | None = None  # token id -> row
    weights: np.ndarray | None = None  # one per token id
    omitted_id: int | None = None  # the id of the unknown token, if it is left out
    budget = LARGEST_NUMBER  # all texts are one batch

    def __post_init__(self) -> None:
        token_arrays = [self.rows if self.mapping is None else self.mapping]
        if self.weights is not None:
            token_arrays.append(self.weights)
        self.config = BertConfig(  # without layers; token types are accepted and ignored
            vocab_size=min(len(array) for array in token_arrays),
            hidden_size=self.rows.shape[1],
            num_hidden_layers=0,
            max_position_embeddings=LARGEST_NUMBER,
            type_vocab_size=256,
            structure=BERT,  # with it, keywords are fields, not keys of config.json
        )

    def is_counted(self, ids: np.ndarray) -> np.ndarray:
        """Return True for each token that is part of the mean of a text, bool [n]."""
        if self.omitted_id is None:
            return np.ones(len(ids), bool)
        return np.asarray(ids != self.omitted_id)

    def token_vectors(self, ids: np.ndarray) -> np.ndarray:
        """Return the vector of each token [n, D]."""
        rows = ids if self.mapping is None else self.mapping[ids]
        vectors = np.asarray(np.take(self.rows, rows, 0), np.float32)
        if self.weights is None:
            return vectors
        return vectors * self.weights[ids][:, None]

    def start(self, batch: PackedTokens, reduction: Reduction) -> WaitForOutputs:
        """Return a function that returns the mean vector of each text, [B, D].

        A text without tokens has zeros. ``reduction`` is not used.
        """
        vectors = np.zeros((len(batch), self.config.hidden_size), np.float32)
        for vector, (start, end) in zip(vectors, pairwise(batch.offsets.tolist()), strict=True):
            ids = batch.ids[start:end]
            ids = ids[self.is_counted(ids)]
            for step in range(0, len(ids), TOKENS_PER_SUM):
                vector += np.add.reduce(self.token_vectors(ids[step : step + TOKENS_PER_SUM]), 0)
            vector /= max(len(ids), 1)
        return lambda: vectors

    def facts(self) -> dict[str, Any]:
        """Return the facts that determine the outputs."""
        return {
            "backend": "static",
            "dtype": "float32",
            "drops_unknown": self.omitted_id is not None,
            "device": "cpu",
        }


def read_table(folder: ModelFolder) -> StaticTable:
    """Open the table of a folder. Raises ModelError if it is incomplete or no such table."""
    files = folder.require_weights()
    tensors = {array.name: array for array in read_tensors(files)}
    name = next((name for name in TABLE_NAMES if name in tensors), None)
    if name is None:
        names = ", ".join(list(tensors)[:8]) or "nothing"
        raise ModelError(
            f"{files.files[0]}: no table of token vectors ({' or '.join(TABLE_NAMES)})",
            f"it has {names}",
        )
    rows = map_tensor(tensors[name])
    if tensors[name].dtype == "F64":
        rows = as_float32(rows, tensors[name])
    token_arrays = {
        key: map_tensor(tensors[key]) for key in ("mapping", "weights") if key in tensors
    }
    if rows.ndim != 2 or not rows.size or any(a.ndim != 1 for a in token_arrays.values()):
        raise ModelError(f"{files.files[0]}: {name} is no table, or what belongs to it is no list")
    mapping = token_arrays.get("mapping")
    weights = token_arrays.get("weights")
    if mapping is not None and not 0 <= int(mapping.min()) <= int(mapping.max()) < len(rows):
        raise ModelError(f"{files.files[0]}: mapping names rows that {name} does not have")
    if weights is not None:
        weights = as_float32(weights, tensors["weights"]).copy()
    return StaticTable(rows, mapping, weights)


def open_static(spec: ModelSpec, tokenizer: Tokenizer) -> StaticTable:
    """Open a table. Raises ModelError if it is incomplete, or smaller than the vocabulary."""
    if spec.architecture == TERM_TABLE:  # embedding/sparse.py reads the weights: no vectors here
        ids = tokenizer.core.get_vocab().values()  # may have gaps
        return StaticTable(np.zeros((1 + max(ids, default=0), 0), np.float32))
    folder = spec.folder.encoder
    table = read_table(folder)
    tokenizer.refuse_beyond(table.config.vocab_size, folder)
    if spec.folder.is_model2vec:
        table.omitted_id = unknown_id(tokenizer)
    return table


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of the unknown token, or None."""
    core = tokenizer.core
    if hasattr(core.model, "unk_token"):
        token = core.model.unk_token
        return None if token is None else core.token_to_id(token)
    unigram = parse(core.to_str())["model"]
    unknown: int | None = unigram.get("unk_id")
    return unknown
