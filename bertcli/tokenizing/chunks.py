"""Split texts into chunks of at most N tokens, as spans of the original characters.

    chunker = Chunker(tokenizer, ChunkSettings(max_length=256, overlap=32, at="sentence"))
    for chunk in chunker.chunks([Record("A long text ..."), Record("")], skip):
        assert chunk.text == chunk.record.text[chunk.start : chunk.end]

- Without overlap, the chunks of a text joined together are the text: white space, and characters
  that produce no token, belong to the chunk before them. An empty text is one empty chunk.
- A chunk ends at the last boundary of the requested level that fits; without one, at the last
  boundary of the next finer level, and finally before any token. No character is split.
- A chunk has the tokens of its own text, which may differ from its tokens in the whole text: if a
  word is split, ``##able`` may become ``able``, and in vocabularies where a blank belongs to the
  next word, a blank at the end of a chunk is a token of its own. So each chunk is tokenized again,
  and shortened if it is too long.
- With an overlap of N tokens, a chunk starts at the first boundary of the level within the last N
  tokens of the previous chunk; without one, at a boundary of a finer level, but inside a word only
  at level "token". It starts later if no complete unit would fit after the overlap.

A text is tokenized once, in slices, and the start positions of its tokens give the end of each
chunk. That is exact for BERT tokenizers if the text is split at white space, otherwise a good
estimate.

A boundary is the position of the first character after it: white space belongs to the text before
it. Positions are counted in characters.

- A paragraph ends with a blank line, or U+2029.
- A sentence ends at the end of a paragraph, and after one of ``. ! ? …`` (and the equivalents of
  other scripts) with any closing quotation marks and brackets, before white space; after Chinese
  and Japanese ones also without white space. It does not end before a lower-case letter, nor after
  a full stop that follows a single letter (an initial, "e.g."), a number of one or two digits (an
  ordinal) or one of ABBREVIATIONS. A false boundary is worse than a missed one.
- A word includes the white space after it. Chinese and Japanese are split between any two
  characters, except before characters that may not start a line.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertcli.errors import InputError, UsageError, option
from bertcli.formats.plain_text import ended_text
from bertcli.formats.registry import LINES, TXT, WHOLE_FILE
from bertcli.records.batch import RecordBatch
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.records.record import Record, TextWindow, row_of
from bertcli.tokenizing.batch import CHUNK_FIELDS, Layout
from bertcli.tokenizing.graphemes import divides
from bertcli.tokenizing.run import ReaderRun
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core

SLICE = 1 << 13  # characters tokenized at once
CHARACTERS_PER_TOKEN = 6  # estimate; a longer text is not tried as a single chunk
FEW_CHARACTERS = 1 << 14  # shorter inputs are not worth the numpy import

Prepare = Callable[[Sequence[str]], Sequence[Any]]

LEVELS = ("paragraph", "sentence", "word")  # coarsest first
ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt no nos vol vols fig figs ch sec art pp
    vs cf al ca approx dept est inc ltd co corp bros jan feb mar apr jun jul aug sep sept oct nov
    dec hr hrn nr str bd abb abs bzw evtl ggf usw vgl mme mlle av sra srta dra ud uds sig dott ing
    """.split()  # noqa: SIM905 - a list of words reads best as lines
)

_LINE = r"(?:\r\n|[\r\n\x85\u2028])"
_PARAGRAPH = rf"{_LINE}[^\S\r\n\x85\u2028\u2029]*{_LINE}\s*|\u2029\s*"
_CLOSING = r"""["'”’»›)\]}」』）】〉》〕］｝]*"""
_ENDS = r"[.!?…‽؟۔।॥።፧፨။៕⸮]+"  # followed by white space
_WIDE_ENDS = r"[。！？｡．‼⁇⁈⁉]+"  # of scripts without white space
_CJK = (
    "\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_NOT_FIRST = (
    "々〻ゝゞヽヾーぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶㇰ-ㇿｧ-ｰ\u3099\u309a\uff9e\uff9f"
)
_CJK_STOPS = "、。，．！？：；」』）】〉》〕］…"
_PATTERNS = {
    "paragraph": re.compile(_PARAGRAPH),
    "sentence": re.compile(rf"({_ENDS}){_CLOSING}\s+|{_WIDE_ENDS}{_CLOSING}\s*|{_PARAGRAPH}"),
    "word": re.compile(
        rf"\s+|(?<=[{_CJK}{_CJK_STOPS}])(?=[^\W_])(?![{_NOT_FIRST}])"
        rf"|(?<=[^\W_])(?=[{_CJK}])(?![{_NOT_FIRST}])"
    ),
}
_BEFORE_STOP = re.compile(r"[^\W_]+\.$")


def boundaries(text: str, low: int, high: int, level: str) -> list[int]:
    """Return the boundaries of a level in (low, high], in ascending order."""
    return [
        match.end()
        for match in _PATTERNS[level].finditer(text, low, min(high + 1, len(text)))
        if low < match.end() <= high and (level != "sentence" or _ends_sentence(text, match))
    ]


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Return True if a sentence ends at this match of the sentence pattern."""
    stop = match.group(1)
    end = match.end()
    if stop is None or _PATTERNS["paragraph"].search(match.group()):
        return True
    if text[end : end + 1].islower():
        return False
    stop_end = match.end(1)
    word_and_stop = _BEFORE_STOP.search(text, max(0, stop_end - 12), stop_end)
    if stop != "." or word_and_stop is None:
        return True
    word = word_and_stop.group()[:-1]
    if word.isdigit():
        return len(word) > 2
    return len(word) > 1 and word.lower() not in ABBREVIATIONS


@dataclass(frozen=True)
class ChunkSettings:
    """How texts are split. If ``max_length`` is None, the model's limit applies."""

    max_length: int | None = None
    overlap: int = 0
    at: Literal["token", "word", "sentence", "paragraph"] = "token"
    first: bool = False  # only the first chunk of each text
    special_tokens: bool = True

    @property
    def levels(self) -> tuple[str, ...]:
        """The boundary levels to try, coarsest first; token boundaries come after them."""
        return LEVELS[LEVELS.index(self.at) :] if self.at in LEVELS else ()


class Chunk(NamedTuple):
    """A chunk of a text: its index in the text, its characters [start, end) and its tokens."""

    record: Record
    sample: int  # index of the record in the run, from 0
    number: int
    start: int
    end: int
    n_tokens: int  # including special tokens

    @property
    def location(self) -> dict[str, int]:
        """The output fields that locate the chunk in its text."""
        return dict(zip(CHUNK_FIELDS, (self.number, self.start, self.end), strict=True))

    @property
    def text(self) -> str:
        """The characters of the chunk."""
        return str(self.record.text)[self.start : self.end]


def token_starts(text: str, core: Core, enough: float) -> Sequence[int]:
    """Return the start of each token of a text, then the end of the text.

    Starts inside a grapheme are left out. The text is read in slices, up to the slice in which
    there are more than ``enough`` starts; then its end is the last item.
    """
    starts = array("q")
    read = 0
    while read < len(text) and len(starts) <= enough:
        piece = text[read : read + SLICE]
        if read + SLICE < len(text):
            piece = piece[: piece.rfind(" ")] or piece  # inside a word only without a blank
        for start, stop in core.encode(piece, add_special_tokens=False).offsets:
            # Leading white space of a token belongs to the chunk before it.
            token_start = read + stop - len(piece[start:stop].lstrip())
            if not divides(text, token_start):
                starts.append(token_start)
        read += len(piece)
    starts.append(read)
    return starts


# Returns the window of each chunk of a text.
FindWindows = Callable[[Sequence[Chunk]], Sequence[TextWindow | None]]


class Chunker:
    """Splits texts. ``prepare`` maps texts to the model's input, for example by adding a prompt."""

    def __init__(
        self, tokenizer: Tokenizer, settings: ChunkSettings, prepare: Prepare | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.prepare = prepare
        self.counted_characters = 0
        self.limit = tokenizer.max_length(Layout(max_length=settings.max_length))
        special_tokens = tokenizer.core.num_special_tokens_to_add(False)
        self.special_tokens = special_tokens if settings.special_tokens else 0
        (self.tokens_of_empty_text,) = self.token_counts([""])
        self.room = self.limit - self.tokens_of_empty_text
        if self.room < 1:
            raise UsageError(
                f"{option('max_length', self.limit)} leaves no room for text",
                f"increase it: special tokens and a prompt take {self.tokens_of_empty_text}",
            )
        if settings.overlap >= self.room:
            raise UsageError(
                f"{option('overlap', settings.overlap)} must be less than the {self.room} "
                "tokens of a chunk",
                f"{option('max_length', self.limit)} without special tokens is {self.room}",
            )

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, including special tokens."""
        texts = list(self.prepare(texts) if self.prepare else texts)
        self.counted_characters += sum(map(len, texts))
        if self.counted_characters < FEW_CHARACTERS:
            encodings = self.tokenizer.core.encode_batch_fast(texts, add_special_tokens=False)
            return [len(encoding) + self.special_tokens for encoding in encodings]
        offsets = self.tokenizer.engine(texts)[1].tolist()
        return [stop - start + self.special_tokens for start, stop in pairwise(offsets)]

    def chunks(
        self, records: Sequence[Record], skip: Callable[[InputError], None], first: int = 0
    ) -> list[Chunk]:
        """Return the chunks of texts, in order.

        ``first`` is the index of the first record in the run. The error of a pair, of a list of
        words, or of a text that cannot be split, goes to ``skip``.
        """
        max_characters = CHARACTERS_PER_TOKEN * self.room  # of a text that may be one chunk
        texts = [record.text if isinstance(record.text, str) else "" for record in records]
        counts = self.token_counts([text if len(text) <= max_characters else "" for text in texts])
        chunks: list[Chunk] = []
        for sample, (record, text, count) in enumerate(
            zip(records, texts, counts, strict=True), first
        ):
            full_text = Chunk(record, sample, 0, 0, len(text), count)
            try:
                if record.pair is not None:
                    where = record.where
                    raise InputError(f"{where}: a pair of texts cannot be divided into chunks")
                if not isinstance(record.text, str):
                    where = record.where
                    raise InputError(f"{where}: a list of words cannot be divided into chunks")
                if len(text) <= max_characters and count <= self.limit:
                    chunks.append(full_text)
                else:
                    chunks += self._split(full_text)
            except InputError as error:
                skip(error)
        return chunks

    def _split(self, full_text: Chunk) -> list[Chunk]:
        """Return the chunks of a text; only the first one if the settings say so."""
        text = full_text.text
        settings = self.settings
        starts = token_starts(
            text, self.tokenizer.core, enough=self.room if settings.first else inf
        )
        chunks = [self._chunk_from(full_text, starts, 0)]
        while chunks[-1].end < len(text) and not settings.first:
            previous = chunks[-1]
            chunk = self._overlapping_chunk(full_text, starts, previous)
            if chunk is None:
                chunk = self._chunk_from(full_text, starts, previous.end)
            chunks.append(chunk._replace(number=len(chunks)))
        return chunks

    def _overlapping_chunk(
        self, full_text: Chunk, starts: Sequence[int], previous: Chunk
    ) -> Chunk | None:
        """Return a chunk that starts in the overlap with the previous one.

        None without an overlap, or if no new text fits after it.
        """
        text = full_text.text
        settings = self.settings
        end = previous.end
        stop = bisect_left(starts, end)
        overlap = dict.fromkeys(starts[max(0, stop - settings.overlap) : stop])
        positions = [start for start in overlap if start > previous.start]
        if positions and settings.levels:
            by_level = (
                boundaries(text, positions[0] - 1, end - 1, level) for level in settings.levels
            )
            positions = next(filter(None, by_level), [])
        max_tokens = settings.overlap + self.tokens_of_empty_text
        for position in positions:
            chunk = self._fitting_chunk(full_text, starts, position, end)
            if chunk and self.token_counts([text[position:end]])[0] <= max_tokens:
                return chunk
        return None

    def _chunk_from(self, full_text: Chunk, starts: Sequence[int], start: int) -> Chunk:
        """Return the chunk that starts at ``start``.

        Raises InputError for a character that has more tokens than a chunk may have.
        """
        chunk = self._fitting_chunk(full_text, starts, start, start)
        if chunk is None:
            chunk = self._part_of_grapheme(full_text, start)
        if chunk.n_tokens > self.limit:
            raise InputError(
                f"{full_text.record.where}: character {start} ({full_text.text[start]!a}) alone "
                f"has more than {self.limit} tokens",
                f"increase {option('max_length')}, or use {option('on_error', 'skip')}",
            )
        return chunk

    def _fitting_chunk(
        self, full_text: Chunk, starts: Sequence[int], start: int, low: int
    ) -> Chunk | None:
        """Return the chunk from ``start`` to the best boundary after ``low``, or None.

        ``low`` is the end of the previous chunk, after ``start`` if the two overlap.
        """
        text = full_text.text
        room = self.room
        number = bisect_left(starts, start)
        while room:
            reach = starts[min(number + room, len(starts) - 1)]
            levels = self.settings.levels if reach < len(text) else ()
            if start < low:
                levels = levels[:1]  # after an overlap: complete units only
            by_level = (boundaries(text, low, reach, level) for level in levels)
            ends = next(filter(None, by_level), [] if start < low and levels else [reach])
            if reach <= low or not ends:
                return None
            chunk = self._counted_chunk(full_text, start, ends[-1])  # tokens may differ
            excess = chunk.n_tokens - self.limit
            if excess <= 0:
                return chunk
            room -= min(excess, (room + 1) // 2)
        return None

    def _part_of_grapheme(self, full_text: Chunk, start: int) -> Chunk:
        """Return the longest prefix of a grapheme that fits, at least one character.

        That one character may be too long.
        """
        end = start + 1
        while divides(full_text.text, end):
            end += 1
        chunk = self._counted_chunk(full_text, start, end)
        while chunk.n_tokens > self.limit and end > start + 1:
            end -= 1
            chunk = self._counted_chunk(full_text, start, end)
        return chunk

    def _counted_chunk(self, full_text: Chunk, start: int, end: int) -> Chunk:
        """Return a part of a text as a chunk, with the number of its tokens."""
        (count,) = self.token_counts([full_text.text[start:end]])
        return full_text._replace(start=start, end=end, n_tokens=count)


# Output fields, which no carried field may be called.
CHUNK_COLUMNS = ("id", *CHUNK_FIELDS, "text", "n_tokens")


def _record_of(chunk: Chunk, source: Input) -> Record:
    """Return the record of a chunk. Without an id it gets its index in the run.

    In a file that is one text, its line is the line where the chunk starts.
    """
    record = chunk.record
    line = record.line
    fields = record.extra or {}
    if source.fields.with_location and source.format_of(record.file) == WHOLE_FILE:
        line += str(record.text).count("\n", 0, chunk.start)
        fields = {**fields, "line": line}
    record_id = chunk.sample if record.id is None else record.id
    return record._replace(id=record_id, line=line, extra=fields)


@dataclass
class ChunkRun(ReaderRun):
    """A run that yields the chunks of all texts, as rows or as bytes of plain text.

    Each chunk of plain text ends with a newline, or with NUL. Raises OutputError for a chunk that
    contains that character.
    """

    chunker: Chunker
    file_format: str

    def __iter__(self) -> Iterator[list[Any]]:
        needs_header = self.file_format not in LINES
        self.reader.unit = "chunks"
        for records in self.blocks():
            skipped_before = self.reader.skipped
            chunks = self.chunker.chunks(records, self.reader.skip, self.tally.records)
            self.skipped += self.reader.skipped - skipped_before
            self.tally.records += len(records)
            self.reader.yielded += len(chunks) - len(records)
            self.tally.literals += self.chunker.tokenizer.count_literals(records)
            if chunks:
                needs_header = False
            if self.file_format == TXT:
                yield self._plain_texts(chunks)
            else:
                yield [self._row(chunk) for chunk in chunks]
            self.finish(self.tally.records)
        if needs_header:
            yield [self.reader.header(dict.fromkeys(CHUNK_COLUMNS))]

    def _plain_texts(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """Return the text of each chunk with its end, as UTF-8."""
        null = self.reader.source.format_options.null
        return [ended_text(chunk.text, chunk.record.where, "chunk", null=null) for chunk in chunks]

    def _row(self, chunk: Chunk) -> dict[str, Any]:
        record = _record_of(chunk, self.reader.source)
        values = {"text": chunk.text, "n_tokens": chunk.n_tokens}
        return row_of(record, chunk.location | values)


def chunk_records(
    chunker: Chunker,
    reader: Reader,
    records: Sequence[Record],
    first: int,
    find_windows: FindWindows | None = None,
) -> Iterator[RecordBatch]:
    """Yield the chunks of texts as records, with the fields that locate them in the texts.

    A text without an id gets its index in the run; ``first`` is the index of the first record.
    ``find_windows`` finds the window that each chunk of a text is encoded in; by default, a chunk
    is encoded alone.
    """
    source = reader.source
    chunk_rows = []
    chunks = chunker.chunks(records, reader.skip, first)
    for _, group in groupby(chunks, attrgetter("sample")):
        chunks_of_text = [*group]
        windows: Sequence[TextWindow | None] = [None] * len(chunks_of_text)
        if find_windows:
            windows = find_windows(chunks_of_text)
        for chunk, window in zip(chunks_of_text, windows, strict=True):
            record = _record_of(chunk, source)
            fields = chunk.location | (record.extra or {})
            if source.kept_text:
                fields[source.kept_text] = chunk.text
            chunk_rows.append(record._replace(text=chunk.text, extra=fields, window=window))
    yield RecordBatch.of(chunk_rows)
