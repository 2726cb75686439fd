"""Whether a model can take what its tokenizer makes of texts; asked before its weights are loaded.

A checkpoint may hold a tokenizer with more tokens than embeddings: tokens were added, and the model
was not resized. transformers loads it, and fails in the middle of a run, at the first such token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertcli.errors import ModelError
from bertcli.models.config import BertConfig
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.tokenizer import Tokenizer


def refuse_unfit(folder: Path, config: BertConfig, tokenizer: Tokenizer) -> None:
    """Raise ModelError for a model that cannot take any text as this tokenizer encodes it."""
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
