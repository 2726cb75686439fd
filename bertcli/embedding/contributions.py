"""Divide the vectors of texts into the contributions of their tokens.

    for tokens, contributions in text_contributions(embedder, [Record("A text.")]):
        contributions.sum(0)        # the vector of the text, [D]

A vector is a sum over its tokens if the pooling is a weighted sum of the token states (mean,
mean_sqrt_len, weightedmean) and all modules after it are linear. Lengths that vectors are divided
by are those of the whole vector.

Letters: `L` tokens of a text that are pooled, `D` dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import compress

import numpy as np

from bertcli.embedding.pooling import (
    TOKEN_COLUMNS,
    TOKEN_WEIGHTS,
    EmbeddedBlock,
    TokenFields,
)
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.embedding.sentence_modules import Dense, UnitLength
from bertcli.engines.static_engine import StaticTable
from bertcli.errors import UsageError, option
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts
from bertcli.records.record import Record


def refuse_not_a_sum(embedder: RecordEmbedder) -> None:
    """Raise UsageError if a text vector of this embedder is not a sum over its tokens."""
    options = embedder.options
    for mode in options.modes:
        if mode not in TOKEN_WEIGHTS:
            *others, last = TOKEN_WEIGHTS
            raise UsageError(
                f"{option('explain')} needs vectors that are means of token vectors, and the "
                f"pooling is {options.pooling}",
                f"possible with {', '.join(others)} and {last}; or {option('token_vectors')} "
                "compares token by token",
            )
    if options.on_truncate in ("window", "late-chunk"):
        raise UsageError(
            f"{option('explain')} cannot be combined with "
            f"{option('on_truncate', options.on_truncate)}",
            f"{option('on_truncate', 'chunk')} makes a vector for each part of a long text",
        )
    for module in embedder.modules:
        if isinstance(module, Dense):
            module.refuse_activation()


def text_contributions(
    embedder: RecordEmbedder, records: Iterable[Record]
) -> Iterator[tuple[TokenFields, np.ndarray]]:
    """Yield the pooled tokens of each text, and their contributions to its vector [L, D]."""
    skip = embedder.unpooled_prompt_tokens
    for tokens, states in _token_states(embedder, records):
        skipped = min(skip, max(len(states) - 1, 0))
        contributions = np.zeros((0, embedder.width))
        if len(states):
            contributions = _contributions(embedder, states.astype(np.float64), skipped)
        yield tokens.after(skipped), contributions


def _contributions(embedder: RecordEmbedder, states: np.ndarray, skipped: int) -> np.ndarray:
    """Return the contributions of the pooled tokens of a text, from all its states [T, D]."""
    options = embedder.options
    weights = [TOKEN_WEIGHTS[mode](len(states), skipped) for mode in options.modes]
    contributions = np.concatenate([w[:, None] * states[skipped:] for w in weights], 1)
    for module in embedder.modules:
        contributions = module.divide(contributions)
    if not options.normalize:
        return contributions[:, : options.dim]
    if options.dim_last:
        return UnitLength().divide(contributions)[:, : options.dim]
    return UnitLength().divide(contributions[:, : options.dim])


def _token_states(
    embedder: RecordEmbedder, records: Iterable[Record]
) -> Iterator[tuple[TokenFields, np.ndarray]]:
    """Yield the tokens of each text with their states [T, D], before pooling and modules."""
    options = replace(
        embedder.options, pooling="none", normalize=False, dim=None, on_truncate="ignore"
    )
    token_embedder = replace(embedder, options=options, modules=())
    table = embedder.runtime.engine
    if not isinstance(table, StaticTable):
        yield from token_vectors(token_embedder, records)
        return
    for batch in token_embedder.run(GivenTexts(records, Input())):
        for row in batch:
            ids = np.asarray(row.columns["input_ids"], np.int64)
            is_counted = table.is_counted(ids)
            columns = (list(compress(row.columns[name], is_counted)) for name in TOKEN_COLUMNS)
            yield TokenFields("tokens", *columns), table.token_vectors(ids[is_counted])


def token_vectors(
    embedder: RecordEmbedder, records: Iterable[Record]
) -> Iterator[tuple[TokenFields, np.ndarray]]:
    """Yield the tokens or words of each text with their vectors [L, D]."""
    run = embedder.run(GivenTexts(records, Input()))
    for window in embedder.windows(run):
        for event in window:
            if isinstance(event, EmbeddedBlock):
                assert event.token_fields is not None  # as the embedder has a vector per token
                yield from zip(event.token_fields, event.vectors, strict=True)


def offsets_in_text(tokens: TokenFields, prompt: str) -> list[tuple[int, int]]:
    """Return the offsets of tokens in their texts without the prompt, in characters.

    Special tokens and tokens of the prompt have (0, 0). The texts are strings: a corpus that is
    searched has no pre-split texts.
    """
    offsets = []
    for (start, end), sequence in zip(tokens.offsets, tokens.sequences, strict=True):
        if sequence == 0:
            start = max(start - len(prompt), 0)
            end = max(end - len(prompt), 0)
        offsets.append((start, end))
    return offsets
