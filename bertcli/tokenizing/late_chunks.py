"""Late chunking: the window of a text in which a chunk is encoded, and its tokens there.

    windows = TextWindows(chunker, max_length=512, stride=64)
    windows.of(chunker.chunks([record], skip))      # [TextWindow(text, start, end, False), ...]

A window has at most ``max_length`` tokens, special tokens and a prompt included. A text that fits
is one window. A longer text has several: each starts with the first chunk that is in no window yet,
after up to ``stride`` tokens before that chunk, and takes as many whole chunks as fit. So every
chunk is in one window, which depends on the text alone.

Source: Günther et al. 2024, "Late Chunking", https://arxiv.org/abs/2409.04701.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf
from operator import itemgetter

import numpy as np

from bertcli.errors import UsageError, option
from bertcli.records.record import TextWindow
from bertcli.tokenizing.batch import Encoded, sequence_span
from bertcli.tokenizing.chunks import Chunk, Chunker, Prepare, token_starts

WINDOW_COLUMNS = ("offset_mapping", "sequence_ids")  # columns that `tokens_of_chunks` reads

Span = tuple[int, int]  # characters [start, end)


class TextWindows:
    """Finds the windows of texts that are divided into chunks."""

    def __init__(self, chunker: Chunker, max_length: int, stride: int) -> None:
        """Make windows of at most ``max_length`` tokens that begin up to ``stride`` before a chunk.

        Raises UsageError if a chunk of the chunker's limit does not leave room for other tokens in
        a window, or none for ``stride`` tokens before it.
        """
        self.chunker = chunker
        self.max_length = max_length
        self.stride = stride
        self.room = max_length - chunker.tokens_of_empty_text
        if chunker.room >= self.room:
            raise UsageError(
                f"{option('on_truncate', 'late-chunk')}: chunks of {chunker.limit} tokens fill "
                f"the {max_length} positions of this model",
                f"give a smaller {option('max_length')}",
            )
        if stride > self.room - chunker.room:
            raise UsageError(
                f"{option('stride', stride)} and a chunk of {chunker.limit} tokens are more than "
                f"the {max_length} positions of this model",
                f"give at most {self.room - chunker.room}",
            )

    def of(self, chunks: Sequence[Chunk]) -> list[TextWindow]:
        """Return the window of each chunk; ``chunks`` are all chunks of one text."""
        text = str(chunks[0].record.text)
        spans = self._spans(text, chunks)
        window_texts = {(start, end): text[start:end] for start, end in dict.fromkeys(spans)}
        has_several = len(window_texts) > 1
        windows = []
        for chunk, span in zip(chunks, spans, strict=True):
            starts_long_text = has_several and chunk.number == 0
            start = chunk.start - span[0]
            end = chunk.end - span[0]
            windows.append(TextWindow(window_texts[span], start, end, starts_long_text))
        return windows

    def _spans(self, text: str, chunks: Sequence[Chunk]) -> list[Span]:
        """Return the characters of the text that are the window of each chunk."""
        full_text = (0, len(text))
        if len(chunks) == 1:
            return [full_text]
        # The number of starts is an estimate of the number of tokens.
        starts = token_starts(text, self.chunker.tokenizer.core, inf)
        if len(starts) <= 2 * self.room and self._excess(text) <= 0:
            return [full_text] * len(chunks)
        spans: list[Span] = []
        ends = [chunk.end for chunk in chunks]
        while len(spans) < len(chunks):
            first = len(spans)
            start, stop = self._window(text, starts, chunks[first].start, ends, first)
            spans += [(start, ends[stop - 1])] * (stop - first)
        return spans

    def _window(
        self,
        text: str,
        starts: Sequence[int],
        chunk_start: int,
        ends: Sequence[int],
        first: int,
    ) -> tuple[int, int]:
        """Return the start of the window whose first chunk is ``first``, and its last chunk + 1.

        The start is a character: that of the chunk, or one up to ``stride`` tokens before it.
        ``starts`` are the first characters of the text's tokens (an estimate), ``chunk_start`` is
        the first character of the chunk, and ``ends`` has the end of each chunk.
        """
        number = bisect_left(starts, chunk_start)
        window_starts = [*starts[max(0, number - self.stride) : number], chunk_start]
        reach = starts[min(bisect_left(starts, window_starts[0]) + self.room, len(starts) - 1)]
        stop = max(first + 1, bisect_right(ends, reach, first))
        while (excess := self._excess(text[window_starts[0] : ends[stop - 1]])) > 0:
            if stop > first + 1:
                stop -= 1
            else:  # the last start always fits: a chunk alone does
                window_starts = window_starts[excess:] or window_starts[-1:]
        return window_starts[0], stop

    def _excess(self, text: str) -> int:
        """Return by how many tokens a text is longer than a window."""
        return self.chunker.token_counts([text])[0] - self.max_length


def tokens_of_chunks(row: Encoded, chunks: Sequence[TextWindow], prepare: Prepare) -> list[slice]:
    """Return the tokens of the chunks of a window, at least one each.

    A token belongs to the chunk that has its last character. Special tokens and a prompt before the
    text belong to the chunk that starts at the first character of the window, and special tokens
    after the text to the chunk that ends at the last one. In a window that starts with context
    (``stride``), [CLS], the prompt and the context belong to no chunk. A chunk without any token
    has the next one.

    ``row`` is the encoded window with WINDOW_COLUMNS, offsets in characters, and ``prepare`` maps
    texts to the model's input.
    """
    text = chunks[0].text
    first, stop = sequence_span([*row.columns["sequence_ids"]], 0)
    token_ends = [*map(itemgetter(1), row.columns["offset_mapping"][first:stop])]
    characters = np.array([(chunk.start, chunk.end) for chunk in chunks])  # [n, 2]
    positions, indices = np.unique(characters, return_inverse=True)
    prefixes = prepare([text[:position] for position in positions.tolist()])
    prepared = np.array([*map(len, prefixes)])[indices].reshape(-1, 2)  # [n, 2]
    tokens = first + np.searchsorted(np.maximum.accumulate(token_ends), prepared, side="right")
    tokens[characters[:, 0] == 0, 0] = 0
    tokens[characters[:, 1] == len(text), 1] = row.length
    starts = np.minimum(tokens[:, 0], row.length - 1)
    stops = np.maximum(tokens[:, 1], starts + 1)
    return [slice(start, stop) for start, stop in np.stack([starts, stops], 1).tolist()]
