"""How texts become inputs of an OpenVINO graph: packed without padding, or padded.

In both forms the vector of a text has the same bits in any batch, order and number of threads. Both
round sizes up, so that batches have few shapes: OpenVINO prepares itself for each of them, which
takes as long as ten tokens.
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
SLOT_STEP = 16  # floats in the widest vector of a CPU
# Products of queries and keys in a batch that may be padding: they take as long as reading the
# weights for two batches in place of one.
PADDING_PRODUCTS = 48_000


class TextForm(Protocol):
    """How the texts of a batch become inputs."""

    kernel: str  # for manifests: vectors of two forms may differ in their last bits

    def batches(self, tokens: PackedTokens, budget: int) -> Iterator[Indices]:
        """Yield the indices of texts, longest first, in batches of at most ``budget`` tokens.

        A text longer than the budget is a batch of its own.
        """

    def inputs(self, tokens: PackedTokens, selection: StateSelection = LAST_STATES) -> Inputs:
        """Return the inputs of a graph by name for the texts of a batch, int64."""


class PackedTexts:
    """Packed tokens; in attention, each text has a multiple of 16 slots.

    Texts of any lengths share a batch. Attention sums over slots in vectors of up to 16 numbers:
    further vectors, of padding alone, add zeros. All else works on each token by itself.
    """

    kernel = "packed texts"

    def batches(self, tokens: PackedTokens, budget: int) -> Iterator[Indices]:
        """Yield batches of similar lengths, so that attention has little padding."""
        order = np.argsort(-tokens.lengths, kind="stable")
        lengths = tokens.lengths[order]
        ends = np.cumsum(lengths)
        start = 0
        while start < len(order):
            slots = padded_slots(int(lengths[start]))
            before = ends[start] - lengths[start]
            last = int(np.searchsorted(ends, before + budget, "right"))
            sizes = np.arange(1, last - start + 1)
            padding = sizes * slots - (ends[start:last] - before)
            most = int(np.searchsorted(padding, PADDING_PRODUCTS // slots, "right"))
            size = max(1, min(last - start, most))
            yield order[start : start + size]
            start += size

    def inputs(self, tokens: PackedTokens, selection: StateSelection = LAST_STATES) -> Inputs:
        """Return the inputs of a packed graph, for `T` tokens and a few of padding."""
        count = len(tokens.ids)
        rows = int(padded_lengths(np.array(count), max_step=SLOT_STEP))
        columns = np.zeros((tokens.columns.shape[1], rows), np.int64)
        columns[:, :count] = tokens.columns.T
        positions = np.zeros(rows, np.int64)
        positions[:count] = tokens.positions
        is_token = np.arange(padded_slots(int(tokens.lengths.max()))) < tokens.lengths[:, None]
        slots = np.zeros(is_token.shape, np.int64)
        slots[is_token] = np.arange(count)
        slots_of_tokens = np.zeros(rows, np.int64)
        slots_of_tokens[:count] = np.flatnonzero(is_token)
        return named_columns(tokens, columns) | {
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
        """Yield batches of texts of one padded length."""
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
        return named_columns(tokens, columns) | {
            MASK: mask.astype(np.int64),
            READ: token_indices.take(selection.token_indices(tokens)),
        }


def named_columns(tokens: PackedTokens, columns: NDArray[np.int64]) -> Inputs:
    """Return the columns of tokens by the names of inputs."""
    names = (IDS, TYPES, *(f"{EXTRA}{name}" for name in tokens.extra_embeddings))
    return dict(zip(names, columns, strict=True))


def padded_slots(length: int) -> int:
    """Return the slots of a text in attention: a multiple of 16."""
    return max(SLOT_STEP, length + -length % SLOT_STEP)


def padded_lengths(
    lengths: Indices, *, longest: int | None = None, max_step: int | None = None
) -> Indices:
    """Return the next of the padded lengths, of which there are 8 between two powers of two.

    They end at ``longest``, and are at most ``max_step`` apart.
    """
    steps = 1 << np.maximum(np.frexp(lengths)[1] - 4, 0)
    if max_step is not None:
        steps = np.minimum(steps, max_step)
    padded = lengths + -lengths % steps
    return padded if longest is None else np.minimum(padded, np.maximum(lengths, longest))
