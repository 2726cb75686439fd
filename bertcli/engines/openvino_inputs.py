"""Batches of texts, and their inputs for an OpenVINO graph: packed tokens, or padded texts.

With both, the vector of a text has the same bits in any batch, order and number of threads. Both
round numbers of tokens up, because OpenVINO prepares itself for each one, which takes as long as
ten tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bertcli.engines.engine import PackedTokens, StateSelection
from bertcli.engines.openvino_graph import (
    ATTENDED,
    IDS,
    MASK,
    POSITIONS,
    READ,
    SLOTS,
    SLOTS_OF_TOKENS,
    TYPES,
)
from bertcli.tokenizing.batch import EXTRA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.engines.engine import Indices

    Inputs = dict[str, np.ndarray]

LAST_STATES = StateSelection()  # the last layer, of all tokens
SLOT_STEP = 16  # numbers in the widest vector of a CPU
TOKEN_STEP = 16  # between two numbers of tokens of a large batch
# Empty slots of a batch times slots of a text. This many take as long as a further batch, measured
# with all-MiniLM-L6-v2 on two cores with AVX2.
MAX_PADDING_PRODUCTS = 48_000


class BatchLayout(Protocol):
    """Forms batches, and makes their inputs for a graph."""

    kernel: str  # for manifests: vectors of two layouts may differ in their last bits

    def batches(self, tokens: PackedTokens, budget: int) -> Iterator[Indices]:
        """Yield the indices of texts in batches of at most ``budget`` tokens, or of one text."""

    def inputs(self, tokens: PackedTokens, selection: StateSelection = LAST_STATES) -> Inputs:
        """Return the inputs of a graph by name for the texts of a batch, int64."""


class PackedTexts:
    """Tokens without padding. Where those of a text are combined, it has a multiple of 16 slots.

    Texts of any lengths share a batch. Attention sums over the slots of a text in vectors of up to
    16 numbers, and vectors of empty slots add zeros. Layers work on each token by itself.
    """

    kernel = "packed texts"

    def batches(self, tokens: PackedTokens, budget: int) -> Iterator[Indices]:
        """Yield batches of similar lengths, the longest first, so that few slots are empty."""
        order = np.argsort(-tokens.lengths, kind="stable")
        lengths = tokens.lengths[order]
        token_ends = np.cumsum(lengths)
        start = 0
        while start < len(order):
            tokens_before = token_ends[start] - lengths[start]
            end = int(np.searchsorted(token_ends, tokens_before + budget, "right"))
            slots = slots_per_text(int(lengths[start]))
            empty_slots = (
                np.arange(1, end - start + 1) * slots - token_ends[start:end] + tokens_before
            )
            size = int(np.searchsorted(empty_slots, MAX_PADDING_PRODUCTS // slots, "right"))
            yield order[start : start + max(1, size)]
            start += max(1, size)

    def inputs(self, tokens: PackedTokens, selection: StateSelection = LAST_STATES) -> Inputs:
        """Return the inputs of a packed graph, for `T` tokens and a few of padding."""
        count = len(tokens.ids)
        rows = int(padded_lengths(np.array(count), max_step=TOKEN_STEP))
        columns = np.zeros((tokens.columns.shape[1], rows), np.int64)
        columns[:, :count] = tokens.columns.T
        positions = np.zeros(rows, np.int64)
        positions[:count] = tokens.positions
        is_filled = np.arange(slots_per_text(int(tokens.lengths.max()))) < tokens.lengths[:, None]
        slots = np.zeros(is_filled.shape, np.int64)
        slots[is_filled] = np.arange(count)
        slots_of_tokens = np.zeros(rows, np.int64)
        slots_of_tokens[:count] = np.flatnonzero(is_filled)
        return token_inputs(tokens, columns) | {
            POSITIONS: positions,
            SLOTS: slots,
            SLOTS_OF_TOKENS: slots_of_tokens,
            ATTENDED: tokens.lengths if tokens.attended is None else tokens.attended,
            READ: selection.token_indices(tokens),
        }


@dataclass(frozen=True)
class PaddedTexts:
    """Texts that are padded to one of 8 lengths per octave; a batch has one of these lengths."""

    longest: int  # maximum tokens of a text: padding ends there
    alone: bool = False  # True if a text must run alone and unpadded, or others change its vector
    kernel = "rows of eight lengths an octave"

    def batches(self, tokens: PackedTokens, budget: int) -> Iterator[Indices]:
        """Yield batches of at most ``budget`` tokens with padding, the longest texts first.

        Texts that must run alone are in their order.
        """
        if self.alone:
            yield from np.arange(len(tokens))[:, None]
            return
        lengths = padded_lengths(tokens.lengths, longest=self.longest)
        order = np.argsort(-tokens.lengths, kind="stable")
        ends = np.flatnonzero(np.diff(lengths[order])) + 1
        for group in np.split(order, ends) if len(order) else []:
            size = max(1, budget // max(1, int(lengths[group[0]])))
            yield from np.split(group, range(size, len(group), size))

    def inputs(self, tokens: PackedTokens, selection: StateSelection = LAST_STATES) -> Inputs:
        """Return the inputs of a padded graph, for texts of one padded length."""
        length = int(tokens.lengths[0])
        if not self.alone:
            length = int(padded_lengths(np.array(length), longest=self.longest))
        columns, token_indices, mask = tokens.padded(length)
        return token_inputs(tokens, columns) | {
            MASK: mask.astype(np.int64),
            READ: token_indices.take(selection.token_indices(tokens)),
        }


def token_inputs(tokens: PackedTokens, columns: NDArray[np.int64]) -> Inputs:
    """Return columns as the inputs of ids, token types and extra embeddings, by name."""
    names = (IDS, TYPES, *(f"{EXTRA}{name}" for name in tokens.extra_embeddings))
    return dict(zip(names, columns, strict=True))


def slots_per_text(length: int) -> int:
    """Round a length up to a multiple of 16, at least 16."""
    return max(SLOT_STEP, length + -length % SLOT_STEP)


def padded_lengths(
    lengths: Indices, *, longest: int | None = None, max_step: int | None = None
) -> Indices:
    """Round lengths up to one of 8 between two powers of two.

    These are at most ``max_step`` apart. A length is not rounded beyond ``longest``.
    """
    steps = 1 << np.maximum(np.frexp(lengths)[1] - 4, 0)
    if max_step is not None:
        steps = np.minimum(steps, max_step)
    padded = lengths + -lengths % steps
    return padded if longest is None else np.minimum(padded, np.maximum(lengths, longest))
