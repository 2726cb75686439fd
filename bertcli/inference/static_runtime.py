"""Models that are tables, opened as any other: no torch, no engine.

A table of token vectors gives each text their mean. Weights of terms from a table need no more than
the ids of tokens, so nothing is run for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import TERM_TABLE, bert_folder, is_model2vec
from bertcli.errors import ModelError
from bertcli.files.typed_json import parse
from bertcli.inference.progress import Ran
from bertcli.inference.runner import Finish, Kept, Tokens, Work
from bertcli.inference.runtime import UNLIMITED, ModelSpec, Runtime
from bertcli.inference.static_table import StaticTable, read_table
from bertcli.models.config import BertConfig
from bertcli.tokenizing.tokenizer import Tokenizer

SIZES: dict[str, Any] = {  # that others ask for: there is no layer, and types make no difference
    "num_hidden_layers": 0,
    "max_position_embeddings": UNLIMITED,
    "type_vocab_size": 256,
}


@dataclass(frozen=True)
class StaticRunner:
    """Takes the mean of the vectors of each text's tokens; without a table, nothing: [0, 2]."""

    table: StaticTable | None = None
    dropped: int | None = None  # the id of unknown words, which count for nothing
    busy = True
    threads = 1

    def run(self, texts: Tokens, finish: Finish, budget: int | None = None) -> Work:
        """Return what is kept of each text; no batch is needed, and nothing else is made of it."""
        ids, offsets = texts.ids, texts.offsets
        if self.dropped is not None and (unknown := ids == self.dropped).any():
            offsets = offsets - np.append(0, unknown.cumsum())[offsets]
            ids = ids[~unknown]
        nothing = [np.zeros((0, 2), np.float32)] * len(texts)
        kept: Kept = self.table.means(ids, offsets) if self.table else nothing
        yield Ran(len(texts), len(texts.ids))
        return kept


@dataclass(frozen=True)
class StaticRuntime(Runtime):
    """A table, with the tokenizer that it was made for."""

    @classmethod
    def open(cls, spec: ModelSpec, tokenizer: Tokenizer) -> StaticRuntime:
        """Open the table. ModelError when it is incomplete, or not the tokenizer's."""
        if spec.kind == TERM_TABLE:  # read by who makes terms of tokens
            tokens = tokenizer.vocabulary_size
            config = BertConfig(tokens, hidden_size=1, num_attention_heads=1, **SIZES)
            return cls(spec, tokenizer, config, StaticRunner(), ("cpu",), 1)
        folder = bert_folder(spec.folder)
        table = read_table(folder)
        if beyond := tokenizer.beyond(table.tokens):
            token, index = beyond
            raise ModelError(
                f"{folder}: token {token!r} has id {index}, but the model has {table.tokens} "
                "token vectors",
                "use the tokenizer that belongs to this model",
            )
        dropped = unknown_id(tokenizer) if is_model2vec(spec.folder) else None
        config = BertConfig(vocab_size=table.tokens, hidden_size=table.width, **SIZES)
        return cls(spec, tokenizer, config, StaticRunner(table, dropped), ("cpu",), 1)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the numbers of this runner, for manifests."""
        if self.spec.kind == TERM_TABLE:
            return {"backend": "none", "dtype": "float32", "device": "cpu"}
        drops = isinstance(self.runner, StaticRunner) and self.runner.dropped is not None
        return {"backend": "static", "dtype": "float32", "drops_unknown": drops, "device": "cpu"}


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of unknown words; None where there is none."""
    core = tokenizer.core
    if hasattr(core.model, "unk_token"):
        token = core.model.unk_token
        found = None if token is None else core.token_to_id(token)
    else:  # Unigram
        found = parse(core.to_str())["model"].get("unk_id")
    return found
