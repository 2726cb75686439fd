"""Texts as a compiled model takes them: packed, and in rows of one length where they attend.

    layout = RowLayout(reading, longest=512)
    layout.lengths(texts.lengths)     # which texts may share a batch: those whose rows are alike
    layout.of(texts)                  # those of one batch

Everything but attention treats each token alone, and takes the tokens of all texts one after the
other, [T], without padding. For attention each text is a row of a length that follows from its own
alone: no vector depends on its batch. So there are few lengths for a library to prepare itself for,
which takes it longer than a small batch; and T is filled up for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.inference.runner import Places, Reading, Tokens

    Numbers = NDArray[np.int32]

STEP = 16  # the length of a row is a multiple of it
FORM = f"packed, in rows of {STEP}"  # what compiled models and vectors depend on, in manifests
EVEN = (16, 64)  # and T of one of these: of the second from so many tokens on that it is little
MANY = 1024


class LaidOut(NamedTuple):
    """The inputs of a compiled model, in their order: B texts, rows of L tokens."""

    ids: Numbers  # [T], behind those of the texts 0
    types: Numbers  # [T]
    back: Numbers  # [T]: where in the rows, row after row, a token stands
    rows: Numbers  # [B, L]: which token stands there; behind the end of a text, its first one
    lengths: Numbers  # [B]
    read: Numbers  # [n]: which tokens are read; none where the mean of all is


@dataclass(frozen=True)
class RowLayout:
    """How texts are laid out for a model that takes so many tokens of a text at most."""

    reading: Reading
    longest: int

    def lengths(self, lengths: Places) -> Places:
        """Return the lengths of the rows of texts of these lengths."""
        found: Places = np.minimum(lengths + -lengths % STEP, np.maximum(lengths, self.longest))
        return found

    def of(self, texts: Tokens) -> LaidOut:
        """Lay out texts whose rows have one length; of others, the longest."""
        lengths, total = texts.lengths, len(texts.ids)
        even = EVEN[total >= MANY]
        ids, types, back = np.zeros((3, total + -total % even), np.int32)
        place = np.arange(self.lengths(lengths).max(initial=0))
        real = place < lengths[:, None]
        ids[:total], types[:total], back[:total] = texts.ids, texts.types, np.flatnonzero(real)
        rows = texts.offsets[:-1, None] + np.where(real, place, 0)
        others = (rows, lengths, self._read(texts))
        return LaidOut(ids, types, back, *(np.ascontiguousarray(x, np.int32) for x in others))

    def _read(self, texts: Tokens) -> Places:
        if self.reading.first:
            return texts.offsets[:-1]
        if self.reading.token is not None:
            return np.flatnonzero(texts.ids == self.reading.token)
        return np.arange(0 if self.reading.mean else len(texts.ids))
