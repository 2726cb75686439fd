"""Texts to pieces of at most N tokens, in their original characters.

    chunker = Chunker(tokenizer, ChunkSettings(max_length=256, overlap=32, at="sentence"))
    for chunks in chunker.chunks([Record("A long text ..."), Record("")], skip):
        for chunk in chunks:
            assert chunk.text == chunk.record.text[chunk.start : chunk.end]

- Without overlap the pieces of a text, one after another, are the text: white space, and characters
  that become no token, belong to the piece that they follow. An empty text is one empty piece.
- A piece ends at the last boundary (`boundaries`) of the level asked for that it has room for;
  where there is none, at the last one of the next finer level, and at last before any token. No
  grapheme is divided that has room, and no character.
- A piece has the tokens that it has alone, which may be others than it has in the text: where a
  word is divided, ``##able`` may become ``able``, and where a blank belongs to the word behind it,
  one at the end of a piece is a token of its own. So each piece is tokenized again, and one that
  came out too long is made shorter.
- With an overlap a piece begins at the first boundary of the level within so many tokens before the
  end of the piece before it; at one of a finer level where there is none, but within a word only at
  the level of tokens. It begins later where nothing whole would fit behind the overlap.

How it is fast: a text is divided into blocks at white space and between ideographs, where tokens of
BERT do not depend on what stands on the other side; for other tokenizers before white space, or
anywhere in what has none, so that their sums are no more than a good guess. Blocks are counted many
at a time, sums of their counts tell in which one a piece ends, and only that one is looked at word
by word. Long texts are read a slice at a time, so time grows with the text, and memory holds one
slice.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from bertcli.errors import InputError, OutputError, UsageError
from bertcli.files.tables import TableHeader
from bertcli.records.reader import Reader
from bertcli.records.records import Record, TextBlock, row_of
from bertcli.records.source import Source
from bertcli.tokenizing.boundaries import (
    FIRST_MARK,
    LEVELS,
    boundaries,
    grapheme_end,
    is_whole,
    last_boundary,
)
from bertcli.tokenizing.columns import PLACE, Layout
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer

SLICE = 1 << 20  # characters that are looked at together
BLOCK = 64  # characters of a block, or more up to its end
LONGEST = 64  # characters of a block of a tokenizer that is not BERT's
GUESSED = 6  # characters of a token: a text with no more may be one piece
FEW_CHARACTERS = 1 << 14  # that do not pay for the import of numpy
WORDS, WORD = 1 << 14, 64  # words whose tokens are remembered, and the longest of them
MOST_AT_ONCE = 1 << 12  # pieces of a text that are tokenized together

# What BERT's rules take alone, so that tokens do not depend on what comes after: white space,
# ideographs, punctuation.
_BREAK = re.compile(
    r"[ \t\n\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
    r"|[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f]"
    r"|[!-/:-@\[-`{-~\u2010-\u2027\u3001-\u3003\u3008-\u3011\uff01-\uff0f\uff1a-\uff20]"
)
# What most others take with the word behind it.
_WHITE = r"[ \t\n\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_BEFORE_WHITE = re.compile(rf"(?<!{_WHITE})(?={_WHITE})")
_NOT_WHITE = re.compile(rf"(?!{_WHITE})")

Prepare = Callable[[Sequence[str]], Sequence[Any]]


@dataclass(frozen=True)
class ChunkSettings:
    """How texts are divided. ``max_length`` None is the model's limit."""

    max_length: int | None = None
    overlap: int = 0
    at: str = "token"
    first: bool = False  # only the first piece of each text
    special_tokens: bool = True

    @property
    def levels(self) -> tuple[str, ...]:
        """The kinds of boundaries that are tried, in this order, before those of tokens."""
        return LEVELS[LEVELS.index(self.at) :] if self.at in LEVELS else ()


class Chunk(NamedTuple):
    """A piece of a text: its number in it, its characters [start, end), and its tokens."""

    record: Record
    sample: int  # the number of the record in the run, from 0
    number: int
    start: int
    end: int
    n_tokens: int  # special ones included

    @property
    def text(self) -> str:
        """The characters of the piece."""
        text = self.record.text
        assert isinstance(text, str)
        return text[self.start : self.end]


class TokenCounter:
    """Counts the tokens of texts, special ones left out. ``prepare`` makes them what is read."""

    def __init__(self, tokenizer: Tokenizer, prepare: Prepare | None = None) -> None:
        tokenizer.notice_changes()
        self.tokenizer, self.prepare = tokenizer, prepare
        self.is_exact = type(tokenizer.core.pre_tokenizer).__name__ == "BertPreTokenizer"
        self.pattern = _BREAK if self.is_exact else _BEFORE_WHITE
        added = tokenizer.core.get_added_tokens_decoder().values()
        self.inside: dict[str, list[tuple[str, int]]] = {}  # two letters -> a token, place between
        for name in (token.content for token in added if not token.content.isspace()):
            for at, (before, after) in enumerate(pairwise(name), 1):
                self.inside.setdefault(before + after, []).append((name, at))
        self.remembered = lru_cache(WORDS)(self._starts)
        self.seen = 0

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        texts = list(self.prepare(texts) if self.prepare else texts)
        self.seen += sum(map(len, texts))
        if self.seen < FEW_CHARACTERS:
            encodings = self.tokenizer.core.encode_batch_fast(texts, add_special_tokens=False)
            return list(map(len, encodings))
        offsets = self.tokenizer.engine(texts)[1].tolist()
        return [stop - start for start, stop in pairwise(offsets)]

    def break_after(self, text: str, at: int) -> int:
        """Return the first place from ``at`` on where tokens and a grapheme end; or the end."""
        most = len(text) if self.is_exact else min(at + LONGEST, len(text))
        for match in self.pattern.finditer(text, at, most):
            if self._is_break(text, match.end()):
                return match.end()
        return next(
            (place for place in range(most, len(text)) if self._is_break(text, place)), len(text)
        )

    def _is_break(self, text: str, at: int) -> bool:
        return is_whole(text, at) and not self._divides(text, at)

    def _divides(self, text: str, at: int) -> bool:
        """Whether a place is within a special or added token that is written out."""
        tokens = self.inside.get(text[at - 1 : at + 1], ())
        return any(text.startswith(name, at - place) for name, place in tokens)

    def starts(self, text: str, start: int, end: int) -> list[int]:
        """Return where the tokens of [start, end) begin; -1 for one within a character."""
        places: list[int] = []
        remembered = self.remembered
        for broken in self.pattern.finditer(text, start, end):
            stop = broken.end()
            if stop == start or self._divides(text, stop):
                continue
            if stop < end and text[stop] >= FIRST_MARK and not is_whole(text, stop):
                continue
            word = text[start:stop]
            starts = remembered(word) if len(word) <= WORD else self._starts(word)
            places += [at if at < 0 else start + at for at in starts]
            start = stop
        if start < end:
            places += [at if at < 0 else start + at for at in self._starts(text[start:end])]
        return places

    def _starts(self, word: str) -> list[int]:
        places, end, last = [], 0, 0
        for start, stop in self.tokenizer.core.encode(word, add_special_tokens=False).offsets:
            if not self.is_exact and word[start : start + 1].isspace():
                # A blank in a token belongs to the piece before.
                after = next(_NOT_WHITE.finditer(word, start)).start()
                start = after if after <= stop and after < len(word) else start
            # Bytes of two characters may be one token: the second begins within it.
            begins = start >= end or (start > last and not self.is_exact)
            places.append(start if begins else -1)
            end, last = max(end, stop), start
        return places


class SliceEndError(Exception):
    """More of a text has to be read before it is known where a piece ends."""


class TokenSums:
    """The tokens of a text up to the ends of its blocks, as far as it is read."""

    def __init__(self, text: str, counter: TokenCounter) -> None:
        self.text, self.counter = text, counter
        self.read = 0  # characters
        self.first, self.tokens_before = 0, 0  # of the blocks that are not forgotten
        self.ends: list[int] = []
        self.sums: list[int] = []
        self.reached = (-1, 0, 0)  # the last question to ``reach``, and its answer

    def more(self, size: int) -> list[str]:
        """Return the next blocks, of so many characters or more; their counts go to ``add``."""
        text, at = self.text, self.read
        end = min(at + size, len(text))
        blocks = []
        while at < end:
            stop = self.counter.break_after(text, at + BLOCK)
            blocks.append(text[at:stop])
            self.ends.append(stop)
            at = stop
        self.read = at
        return blocks

    def add(self, counts: Sequence[int]) -> None:
        """Take in how many tokens the blocks of ``more`` have."""
        tokens = self.sums[-1] if self.sums else self.tokens_before
        for count in counts:
            tokens += count
            self.sums.append(tokens)

    def forget(self, before: int) -> None:
        """Forget the blocks that end at or before a place."""
        gone = bisect_right(self.ends, before)
        if gone:
            self.first, self.tokens_before = self.ends[gone - 1], self.sums[gone - 1]
            del self.ends[:gone], self.sums[:gone]

    def reach(self, start: int, room: int) -> int:
        """Return how far so many tokens go: the start of the next token, at a grapheme's start.

        It is ``start`` when the first grapheme has more. Raises SliceEndError.
        """
        if room <= 0 or start == len(self.text):
            return start
        if self.reached[:2] != (start, room):
            self.reached = (start, room, self._reach(start, room))
        return self.reached[2]

    def _reach(self, start: int, room: int) -> int:
        block = bisect_right(self.ends, start)
        if block == len(self.ends):
            raise SliceEndError
        before = self._before(block)
        if start > self._begin(block):
            starts = self.counter.starts(self.text, start, self.ends[block])
            if room < len(starts):
                return self._place(starts, room, start)
            before, room, block = self.sums[block], room - len(starts), block + 1
        last = bisect_right(self.sums, before + room, block)
        if last < len(self.sums):
            begin = self._begin(last)
            starts = self.counter.starts(self.text, begin, self.ends[last])
            return self._place(starts, before + room - self._before(last), begin)
        if self.read < len(self.text):
            raise SliceEndError
        return len(self.text)

    def back(self, end: int, tokens: int) -> int:
        """Return a place at most so many tokens before ``end``, where a grapheme begins."""
        at = self._back(end, tokens)
        if self.counter.is_exact and self.text[at - 1].isspace():
            return at
        while len(starts := self.counter.starts(self.text, at, end)) > tokens:  # a word is divided
            later = [place for place in starts if place > at]  # a blank that was added has no width
            at = self._place_after(later, at, end)
        return at

    def _back(self, end: int, tokens: int) -> int:
        block = bisect_left(self.ends, end)
        begin = self._begin(block)
        starts = self.counter.starts(self.text, begin, end)
        at = len(starts) - tokens
        if at < 0:
            number = self._before(block) + at
            block = bisect_right(self.sums, number)
            begin, end = self._begin(block), self.ends[block]
            starts = self.counter.starts(self.text, begin, end)
            at = number - self._before(block)
        return self._place_after(starts[max(at, 0) :], begin, end)

    def _place_after(self, starts: Sequence[int], begin: int, end: int) -> int:
        """Return the first of the starts of tokens that is one of a grapheme; else ``end``."""
        places = (place for place in starts if place >= 0)
        return next((place for place in places if is_whole(self.text, place, begin)), end)

    def _place(self, starts: Sequence[int], at: int, begin: int) -> int:
        """Return where a token begins; an earlier one where that is within a grapheme."""
        for start in reversed(starts[: at + 1]):
            if start > begin and is_whole(self.text, start, begin):
                return start
        return begin

    def _begin(self, block: int) -> int:
        return self.ends[block - 1] if block else self.first

    def _before(self, block: int) -> int:
        return self.sums[block - 1] if block else self.tokens_before


class ChunkPlan:
    """How one text is divided: pieces are proposed, counted by the caller, and accepted."""

    def __init__(self, record: Record, sample: int, chunker: Chunker) -> None:
        assert isinstance(record.text, str)
        self.record, self.sample, self.chunker = record, sample, chunker
        self.text, self.settings = record.text, chunker.settings
        self.sums = TokenSums(record.text, chunker.counter)
        self.is_hungry = True
        self.done = False
        self.ready: list[Chunk] = []
        self.number = 0
        self.last: tuple[int, int] | None = None  # the last piece accepted
        self.at_once = MOST_AT_ONCE
        self.too_long: dict[int, tuple[int, int]] = {}  # start -> end of a piece, tokens too many
        self.proposed: list[tuple[int, int]] = []

    def blocks(self) -> list[str]:
        """Return what has to be counted before pieces can be proposed."""
        if not self.is_hungry:
            return []
        self.is_hungry = False
        if self.last:
            self.sums.forget(self.last[0])
        room = self.chunker.room
        return self.sums.more(4 * GUESSED * room if self.settings.first else SLICE)

    def propose(self, skip: Callable[[InputError], None]) -> list[str]:
        """Return the texts of the next pieces.

        A character that has more tokens than a piece may have goes to ``skip``, and ends the text.
        """
        try:
            self.proposed = list(self._next())
        except InputError as error:
            skip(error)
            self.done, self.proposed, self.ready = True, [], []
        return [self.text[start:end] for start, end in self.proposed]

    def accept(self, counts: Sequence[int]) -> None:
        """Take pieces up to the first one that has too many tokens, which is proposed anew."""
        for (start, end), count in zip(self.proposed, counts, strict=True):
            over = count - self.chunker.text_room
            if over > 0:
                _, less = self.too_long.get(start, (0, 0))
                self.too_long[start], self.at_once = (end, less + over), 1
                return
            self.too_long.clear()
            n_tokens = count + self.chunker.special
            chunk = Chunk(self.record, self.sample, self.number, start, end, n_tokens)
            self.ready.append(chunk)
            self.last, self.number = (start, end), self.number + 1
            self.done = end == len(self.text) or self.settings.first
        self.at_once = min(2 * self.at_once, MOST_AT_ONCE)

    def _next(self) -> Iterator[tuple[int, int]]:
        last = self.last
        for _ in range(self.at_once):
            low = last[1] if last else 0
            try:
                start = self._start(*last) if last else 0
                end = self._end(start, low)
            except SliceEndError:
                self.is_hungry = True
                return
            yield start, end
            if end == len(self.text) or self.settings.first:
                return
            last = start, end

    def _end(self, start: int, low: int) -> int:
        """Return where a piece ends, behind ``low``; ``low`` when nothing more fits into it."""
        bound, less = self.too_long.get(start, (None, 0))
        while (reach := self.sums.reach(start, self.chunker.room - less)) > low:
            end = self._boundary(low, reach)
            if bound is None or end < bound:
                return end
            less += 1
        return low if start < low else self._least(start, bound)

    def _boundary(self, low: int, reach: int) -> int:
        """Return the best place to end in (low, reach]."""
        if reach < len(self.text):
            for level in self.settings.levels:
                end = last_boundary(self.text, low, reach, level)
                if end is not None:
                    return end
        return reach

    def _least(self, start: int, bound: int | None) -> int:
        """Return the end of the first grapheme; of its first character where that is too long."""
        end = grapheme_end(self.text, start)
        if bound is None or end < bound:
            return end
        if start + 1 < bound:
            return start + 1
        raise InputError(
            f"{self.record.where}: character {start} ({self.text[start]!a}) alone has more than "
            f"{self.chunker.limit} tokens",
            "increase --max-length, or use --on-error skip",
        )

    def _start(self, start: int, end: int) -> int:
        """Return where the piece begins that follows the piece [start, end)."""
        if not self.settings.overlap:
            return end
        back = self.sums.back(end, self.settings.overlap)
        places = [back] if start < back < end else []
        for level in self.settings.levels:
            places = list(boundaries(self.text, max(back - 1, start), end - 1, level))
            if places:
                break
        if not self.chunker.counter.is_exact:  # without the blank before it, a word may have more
            counts, overlap = self.chunker.counter.counts, self.settings.overlap
            while places and counts([self.text[places[0] : end]])[0] > overlap:
                places.pop(0)
        places.append(end)
        start = places[0]
        if not self._takes_unit(start, end):
            fits = self._takes_unit if self._takes_unit(end, end) else self._takes_more
            start = places[bisect_left(places, True, key=lambda place: fits(place, end))]
        return start if self._takes_more(start, end) else end

    def _takes_unit(self, start: int, low: int) -> bool:
        """Whether a piece from ``start`` can end behind ``low`` at a boundary of the level."""
        if not self.settings.levels:
            return self._takes_more(start, low)
        reach, level = self.sums.reach(start, self.chunker.room), self.settings.levels[0]
        return reach == len(self.text) or any(boundaries(self.text, low, reach, level))

    def _takes_more(self, start: int, low: int) -> bool:
        return self._end(start, low) > low


class Chunker:
    """Divides texts. ``prepare`` makes them what is tokenized, as with a prompt before each."""

    def __init__(
        self, tokenizer: Tokenizer, settings: ChunkSettings, prepare: Prepare | None = None
    ) -> None:
        layout = Layout(special_tokens=settings.special_tokens, max_length=settings.max_length)
        self.settings, self.limit = settings, tokenizer.max_length(layout)
        self.counter = TokenCounter(tokenizer, prepare)
        self.text_room = tokenizer.room(self.limit, layout, pair=False)
        self.special = self.limit - self.text_room
        prompt, word, ended = self.counter.counts(["", "a", "a "])
        self.room = self.text_room - prompt
        if self.room < 1:
            what = "special tokens and the prompt" if prompt else "special tokens"
            raise UsageError(
                f"--max-length {self.limit} leaves no room for text",
                f"increase it: {what} take {self.limit - self.room}",
            )
        if settings.overlap >= self.room:
            raise UsageError(
                f"--overlap {settings.overlap} must be less than the {self.room} tokens of a chunk",
                f"--max-length {self.limit} without special tokens is {self.room}",
            )
        if ended > word:  # the white space that ends most pieces is a token
            self.room = max(self.room - 1, settings.overlap + 1)

    def chunks(
        self, records: Sequence[Record], skip: Callable[[InputError], None], first: int = 0
    ) -> Iterator[list[Chunk]]:
        """Yield the pieces of texts in their order, as many as memory allows at a time.

        ``first`` is the number of the first record in the run. A text that cannot be divided goes
        to ``skip``, as does a pair.
        """
        group: list[tuple[int, Record]] = []
        size = 0
        for sample, record in enumerate(records, first):
            if record.pair is not None:
                where = record.where
                skip(InputError(f"{where}: a pair of texts cannot be divided into chunks"))
                continue
            if group and size + len(record.text) > SLICE:
                yield from self._divided(self._begun(group), skip)
                group, size = [], 0
            group.append((sample, record))
            size += len(record.text)
        yield from self._divided(self._begun(group), skip)

    def _begun(self, records: Sequence[tuple[int, Record]]) -> Sequence[Chunk | ChunkPlan]:
        """Return the pieces of texts that are short enough to be one, and plans for the others."""
        most = min(GUESSED * self.room, SLICE)
        short = [record.text for _, record in records if len(record.text) <= most]
        (counts,) = map(iter, self._counts([short]))  # type: ignore[list-item]
        pieces: list[Chunk | ChunkPlan] = []
        for sample, record in records:
            length = len(record.text)
            count = next(counts) if length <= most else None
            if count is None or count > self.text_room:
                pieces.append(ChunkPlan(record, sample, self))
            else:
                pieces.append(Chunk(record, sample, 0, 0, length, count + self.special))
        return pieces

    def _divided(
        self, items: Sequence[Chunk | ChunkPlan], skip: Callable[[InputError], None]
    ) -> Iterator[list[Chunk]]:
        written = 0
        while written < len(items):
            active = [item for item in items[written:] if isinstance(item, ChunkPlan)]
            active = [plan for plan in active if not plan.done]
            blocks = [plan.blocks() for plan in active]
            for plan, counts in zip(active, self._counts(blocks), strict=True):
                plan.sums.add(counts)
            proposed = [plan.propose(skip) for plan in active]
            for plan, counts in zip(active, self._counts(proposed), strict=True):
                plan.accept(counts)
            pieces: list[Chunk] = []
            for item in items[written:]:
                if isinstance(item, Chunk):
                    pieces.append(item)
                else:
                    if item.done or len(item.text) > SLICE:  # what can be held is written whole
                        pieces += item.ready
                        item.ready = []
                    if not item.done:
                        break
                written += 1
            if pieces:
                yield pieces

    def _counts(self, groups: Sequence[Sequence[str]]) -> Iterator[list[int]]:
        """Yield the counts of groups of texts, which are counted together."""
        texts = [text for group in groups for text in group]
        counts = iter(self.counter.counts(texts) if texts else ())
        for group in groups:
            yield [next(counts) for _ in group]


WRITTEN = ("id", *PLACE, "text", "n_tokens")  # names that no carried field may have


def chunk_row(chunk: Chunk, source: Source) -> dict[str, Any]:
    """Return what is written of a piece. A record without an id has its number."""
    columns = {"text": chunk.text, "n_tokens": chunk.n_tokens}
    return row_of(_named(chunk, source), _place(chunk) | columns)


def _place(chunk: Chunk) -> dict[str, int]:
    return dict(zip(PLACE, (chunk.number, chunk.start, chunk.end), strict=True))


def _named(chunk: Chunk, source: Source) -> Record:
    """Return the record of a piece, with its number where it has no id.

    In a file that is one text it has the line of the piece.
    """
    record = chunk.record
    if record.id is None:
        record = record._replace(id=chunk.sample)
    if not source.placed or source.format_of(record.file) != "whole":
        return record
    line = record.line + str(record.text).count("\n", 0, chunk.start)
    return record._replace(line=line, extra={**(record.extra or {}), "line": line})


def plain(chunks: Sequence[Chunk], *, null: bool) -> bytes:
    """Return the pieces alone, each ended by a line feed, or by NUL.

    Raises OutputError for a piece that holds such a character itself.
    """
    end, name, hint = "\n", "line feed", "-0 ends chunks with NUL, --format jsonl holds any text"
    if null:
        end, name, hint = "\0", "NUL", "--format jsonl holds any text"
    texts = [chunk.text for chunk in chunks]
    for chunk, text in zip(chunks, texts, strict=True):
        if end in text:
            raise OutputError(f"{chunk.record.where}: a chunk holds a {name}, which ends it", hint)
    return "".join([text + end for text in texts]).encode()


@dataclass
class ChunkRun:
    """One pass over a source. Iterate once; ``tally`` counts texts, ``chunks`` their pieces."""

    reader: Reader
    chunker: Chunker
    tally: TokenCounts = field(default_factory=TokenCounts)
    chunks: int = 0
    bytes_done: float = 0  # of the input that is read; about, where one long text is divided

    def __iter__(self) -> Iterator[list[Chunk]]:
        """Yield the pieces of all texts, in their order."""
        tokenizer = self.chunker.counter.tokenizer
        for records in self.reader.blocks():
            first = self.tally.records
            self.tally.records += len(records)
            self.tally.literals += tokenizer.count_literals(records)
            before, length = self.bytes_done, len(records[0].text) if len(records) == 1 else 0
            for chunks in self.chunker.chunks(records, self.reader.skip, first):
                self.chunks += len(chunks)
                if length:
                    part = chunks[-1].end / length
                    self.bytes_done = before + (self.reader.bytes_read - before) * part
                yield chunks
            self.bytes_done = self.reader.bytes_read

    def header(self) -> TableHeader:
        """Return the row that begins a table without any."""
        carried = dict.fromkeys(self.reader.fields.carried) if self.reader.fields else {}
        return TableHeader(dict.fromkeys(WRITTEN) | carried)

    def write(
        self, form: str, put: Callable[[Sequence[Any]], None], *, null: bool = False
    ) -> Iterator[int]:
        """Write all pieces, and yield how many there are so far.

        The writer of plain text takes bytes: its form is "finished".
        """
        for chunks in self:
            if form == "txt":
                put([plain(chunks, null=null)])
            else:
                put([chunk_row(chunk, self.reader.source) for chunk in chunks])
            yield self.chunks
        if not self.chunks and form not in ("txt", "jsonl"):
            put([self.header()])


class ChunkReader(Reader):
    """Reads the pieces of texts as records of their own, which carry their places in the texts.

    A text without an id has its number.
    """

    def __init__(self, reader: Reader, chunker: Chunker) -> None:
        super().__init__(reader.source, reader.warn, reader.note)
        self.chunker = chunker

    def again(self) -> Reader:
        """Return a reader of the same pieces, from the first."""
        return ChunkReader(super().again(), self.chunker)

    def blocks(self) -> Iterator[Sequence[Record]]:
        """Yield pieces as they become available, in lists of no fixed length."""
        for records in super().blocks():
            first = self.records - len(records)
            for chunks in self.chunker.chunks(records, self.skip, first):
                yield TextBlock.of([_record_of(chunk, self.source) for chunk in chunks])


def _record_of(chunk: Chunk, source: Source) -> Record:
    record = _named(chunk, source)
    extra = _place(chunk) | (record.extra or {})
    if source.kept_text:
        extra[source.kept_text] = chunk.text
    return record._replace(text=chunk.text, extra=extra)
