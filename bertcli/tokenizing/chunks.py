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
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertcli.errors import InputError, OutputError, UsageError, option
from bertcli.formats.registry import LINES, TXT, WHOLE_FILE
from bertcli.records.batch import RecordBatch
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.records.record import Record, row_of
from bertcli.tokenizing.batch import PLACE, Layout
from bertcli.tokenizing.graphemes import divides
from bertcli.tokenizing.run import ReaderRun
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core

SLICE = 1 << 13  # characters tokenized at once
GUESSED = 6  # characters per token: a text within this estimate may be one chunk
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
    at = match.end(1)
    before = _BEFORE_STOP.search(text, max(0, at - 12), at)
    if stop != "." or before is None:
        return True
    word = before.group()[:-1]
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
    def place(self) -> dict[str, int]:
        """The output fields that locate the chunk in its text."""
        return dict(zip(PLACE, (self.number, self.start, self.end), strict=True))

    @property
    def text(self) -> str:
        """The characters of the chunk."""
        return str(self.record.text)[self.start : self.end]


def token_starts(text: str, core: Core, enough: float) -> Sequence[int]:
    """Return the start of each token of a text, then the end of the text.

    Stops after the slice in which there are more than ``enough`` starts.

    Starts inside a grapheme are left out.
    """
    starts = array("q")
    read = 0
    while read < len(text) and len(starts) <= enough:
        piece = text[read : read + SLICE]
        if read + SLICE < len(text):
            piece = piece[: piece.rfind(" ")] or piece  # inside a word only without a blank
        for start, stop in core.encode(piece, add_special_tokens=False).offsets:
            # Leading white space of a token belongs to the chunk before it.
            begin = read + stop - len(piece[start:stop].lstrip())
            if not divides(text, begin):
                starts.append(begin)
        read += len(piece)
    starts.append(read)
    return starts


class Chunker:
    """Splits texts. ``prepare`` maps texts to the model's input, for example by adding a prompt."""

    def __init__(
        self, tokenizer: Tokenizer, settings: ChunkSettings, prepare: Prepare | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.prepare = prepare
        self.seen = 0  # characters counted so far
        self.limit = tokenizer.max_length(Layout(max_length=settings.max_length))
        special = tokenizer.core.num_special_tokens_to_add(False)
        self.special = special if settings.special_tokens else 0
        (self.empty,) = self.counts([""])  # tokens of an empty text
        self.room = self.limit - self.empty
        if self.room < 1:
            raise UsageError(
                f"{option('max_length', self.limit)} leaves no room for text",
                f"increase it: special tokens and a prompt take {self.empty}",
            )
        if settings.overlap >= self.room:
            raise UsageError(
                f"{option('overlap', settings.overlap)} must be less than the {self.room} "
                "tokens of a chunk",
                f"{option('max_length', self.limit)} without special tokens is {self.room}",
            )

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, including special tokens."""
        texts = list(self.prepare(texts) if self.prepare else texts)
        self.seen += sum(map(len, texts))
        if self.seen < FEW_CHARACTERS:
            encodings = self.tokenizer.core.encode_batch_fast(texts, add_special_tokens=False)
            return [len(encoding) + self.special for encoding in encodings]
        offsets = self.tokenizer.engine(texts)[1].tolist()
        return [stop - start + self.special for start, stop in pairwise(offsets)]

    def chunks(
        self, records: Sequence[Record], skip: Callable[[InputError], None], first: int = 0
    ) -> list[Chunk]:
        """Return the chunks of texts, in order.

        ``first`` is the index of the first record in the run. The error of a pair, or of a text
        that cannot be split, goes to ``skip``.
        """
        most = GUESSED * self.room
        texts: list[Any] = [record.text for record in records]
        counts = self.counts([text if len(text) <= most else "" for text in texts])
        chunks: list[Chunk] = []
        for sample, (record, text, count) in enumerate(
            zip(records, texts, counts, strict=True), first
        ):
            whole = Chunk(record, sample, 0, 0, len(text), count)
            try:
                if record.pair is not None:
                    where = record.where
                    raise InputError(f"{where}: a pair of texts cannot be divided into chunks")
                fits = len(text) <= most and count <= self.limit
                chunks += [whole] if fits else self._pieces(whole)
            except InputError as error:
                skip(error)
        return chunks

    def _pieces(self, whole: Chunk) -> list[Chunk]:
        text = whole.text
        settings = self.settings
        enough = self.room if settings.first else inf
        starts = token_starts(text, self.tokenizer.core, enough)
        pieces = [self._piece(whole, starts, 0)]
        while (end := pieces[-1].end) < len(text) and not settings.first:
            stop = bisect_left(starts, end)
            last = dict.fromkeys(starts[max(0, stop - settings.overlap) : stop])
            places = [at for at in last if at > pieces[-1].start]
            if places and settings.levels:
                by_level = (
                    boundaries(text, places[0] - 1, end - 1, level) for level in settings.levels
                )
                places = next(filter(None, by_level), [])
            for place in places:  # start in the overlap if new text fits after it
                piece = self._fitting(whole, starts, place, end)
                most = settings.overlap + self.empty
                if piece and self.counts([text[place:end]])[0] <= most:
                    break
            else:
                piece = self._piece(whole, starts, end)
            pieces.append(piece._replace(number=len(pieces)))
        return pieces

    def _piece(self, whole: Chunk, starts: Sequence[int], start: int) -> Chunk:
        """Return the chunk that starts at ``start``.

        Raises InputError for a character that has more tokens than a chunk may have.
        """
        piece = self._fitting(whole, starts, start, start) or self._part_of_grapheme(whole, start)
        if piece.n_tokens > self.limit:
            raise InputError(
                f"{whole.record.where}: character {start} ({whole.text[start]!a}) alone has more "
                f"than {self.limit} tokens",
                f"increase {option('max_length')}, or use {option('on_error', 'skip')}",
            )
        return piece

    def _fitting(self, whole: Chunk, starts: Sequence[int], start: int, low: int) -> Chunk | None:
        """Return the chunk from ``start`` to the best boundary after ``low``, or None."""
        text = whole.text
        room = self.room
        number = bisect_left(starts, start)
        while room:
            reach = starts[min(number + room, len(starts) - 1)]
            levels = self.settings.levels if reach < len(text) else ()
            levels = levels[:1] if start < low else levels  # after an overlap: complete units only
            by_level = (boundaries(text, low, reach, level) for level in levels)
            ends = next(filter(None, by_level), [] if start < low and levels else [reach])
            if reach <= low or not ends:
                return None
            piece = self._counted(whole, start, ends[-1])  # tokens may differ from the text's
            over = piece.n_tokens - self.limit
            if over <= 0:
                return piece
            room -= min(over, (room + 1) // 2)
        return None

    def _part_of_grapheme(self, whole: Chunk, start: int) -> Chunk:
        """Return the longest prefix of a grapheme that fits, at least one character.

        That one character may be too long.
        """
        end = start + 1
        while divides(whole.text, end):
            end += 1
        while (piece := self._counted(whole, start, end)).n_tokens > self.limit and end > start + 1:
            end -= 1
        return piece

    def _counted(self, whole: Chunk, start: int, end: int) -> Chunk:
        (count,) = self.counts([whole.text[start:end]])
        return whole._replace(start=start, end=end, n_tokens=count)


WRITTEN = ("id", *PLACE, "text", "n_tokens")  # output fields, which no carried field may be called


def _named(chunk: Chunk, source: Input) -> Record:
    """Return the record of a chunk. Without an id it gets its index in the run.

    In a file that is one text, its line is the line where the chunk starts.
    """
    record, line, extra = chunk.record, chunk.record.line, chunk.record.extra or {}
    if source.fields.with_location and source.format_of(record.file) == WHOLE_FILE:
        line += str(record.text).count("\n", 0, chunk.start)
        extra = {**extra, "line": line}
    number = chunk.sample if record.id is None else record.id
    return record._replace(id=number, line=line, extra=extra)


@dataclass
class ChunkRun(ReaderRun):
    """A run that yields the chunks of all texts, as rows or as bytes of plain text.

    Each chunk of plain text ends with a newline, or with NUL. Raises OutputError for a chunk that
    contains that character.
    """

    chunker: Chunker
    form: str

    def __iter__(self) -> Iterator[list[Any]]:
        source = self.reader.source
        is_empty = self.form not in LINES
        end = "\0" if source.format_options.null else "\n"
        self.reader.unit = "chunks"
        for records in self.blocks():
            before = self.reader.skipped
            chunks = self.chunker.chunks(records, self.reader.skip, self.tally.records)
            self.skipped += self.reader.skipped - before
            self.tally.records += len(records)
            self.reader.yielded += len(chunks) - len(records)
            self.tally.literals += self.chunker.tokenizer.count_literals(records)
            is_empty &= not chunks
            if self.form == TXT:
                for chunk in chunks:
                    if end in chunk.text:
                        raise OutputError(
                            f"{chunk.record.where}: a chunk holds {end!r}, which ends it",
                            f"-0 ends chunks with NUL, {option('format', 'jsonl')} holds any text",
                        )
                yield [(chunk.text + end).encode() for chunk in chunks]
            else:
                yield [
                    row_of(
                        _named(chunk, source),
                        chunk.place | {"text": chunk.text, "n_tokens": chunk.n_tokens},
                    )
                    for chunk in chunks
                ]
            self.finish(self.tally.records)
        if is_empty:
            yield [self.reader.header(dict.fromkeys(WRITTEN))]


def pieces(
    chunker: Chunker, reader: Reader, records: Sequence[Record], first: int
) -> Iterator[RecordBatch]:
    """Yield the chunks of texts as records, with the fields that locate them in the texts.

    A text without an id gets its index in the run; ``first`` is the index of the first record.
    """
    source = reader.source
    records_of_pieces = []
    for chunk in chunker.chunks(records, reader.skip, first):
        record = _named(chunk, source)
        extra = chunk.place | (record.extra or {})
        if source.kept_text:
            extra[source.kept_text] = chunk.text
        records_of_pieces.append(record._replace(text=chunk.text, extra=extra))
    yield RecordBatch.of(records_of_pieces)
