"""Records with their vectors: what an embedder makes of a window of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import NamedTuple, overload

import numpy as np

from bertcli.embedding.token_vectors import TokenVectors
from bertcli.inference.progress import Ran
from bertcli.records.text_block import TextBlock
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.run import Batch, RaggedBatch, TokenCounts, each_of

COLUMNS = ("input_ids", "token_type_ids")  # that a model needs of each text


class Embedded(NamedTuple):
    """A record, its tokens, and its vector [D], or [k, D] with stacked layers.

    Where each token or word has a vector, those are [L, D...], and ``pieces`` says of what.
    """

    encoded: Encoded
    vector: np.ndarray
    pieces: TokenVectors | None = None


class EmbeddedBlock(Sequence[Embedded]):
    """Records with their vectors, as columns; an `Embedded` is made where somebody asks for one.

    The vectors are an array [n, D...], or where tokens or words have one each, ``pieces`` says
    which, and the vectors of each record are [L, D...].
    """

    def __init__(
        self,
        batch: Batch,
        vectors: np.ndarray | list[np.ndarray],
        pieces: list[TokenVectors] | None = None,
    ) -> None:
        self.batch, self.vectors, self.pieces = batch, vectors, pieces
        if isinstance(batch, RaggedBatch):
            self.records, self.samples = batch.records, batch.samples
            self.lengths: list[int] = batch.tokens.lengths.tolist()
            self.cuts: list[int] = batch.tokens.cut.tolist()
        else:
            self.records = TextBlock.of([item.record for item in batch])
            self.samples = [item.sample for item in batch]
            self.lengths = [item.length for item in batch]
            self.cuts = [item.cut for item in batch]

    @cached_property
    def items(self) -> list[Embedded]:
        """The records one by one."""
        pieces: Iterable[TokenVectors | None] = self.pieces or repeat(None)
        return list(map(Embedded, each_of(self.batch, COLUMNS), self.vectors, pieces))

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, at: int) -> Embedded: ...
    @overload
    def __getitem__(self, at: slice) -> list[Embedded]: ...
    def __getitem__(self, at: int | slice) -> Embedded | list[Embedded]:
        return self.items[at]


class EmbedWindow(NamedTuple):
    """A window of records: its counts, and what comes of it, in order, once it is iterated."""

    counts: TokenCounts
    parts: Iterator[Ran | EmbeddedBlock]
