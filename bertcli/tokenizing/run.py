"""Runs over records: tokenizing in groups of records, the output of `tokenize`, and decoding.

    output = TokenOutput(Layout())
    run = output.run(reader, tokenizer)
    with streamed_rows(path, output.writer) as write:
        output.write(run, run, write)

Many records go as arrays from the tokenizer to the file (`ragged` formats the lines), few records
as rows (`encode_block` has the reason). The output bytes are identical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import repeat
from typing import Any

from bertcli.errors import LOG, InputError, counted
from bertcli.formats.jsonl import to_lines
from bertcli.formats.plain_text import to_text
from bertcli.formats.registry import (
    ARRAYS,
    BINARY,
    ENCODED_ROWS,
    FORMATS,
    JSONL,
    LINES,
    TABULAR,
)
from bertcli.formats.tables import (
    FlatLists,
    Table,
    TableHeader,
    fields_of,
)
from bertcli.io.streams import size_on_disk
from bertcli.io.system_calls import cores
from bertcli.records.batch import CHARACTERS, RecordBatch, record_windows
from bertcli.records.reader import Reader
from bertcli.records.record import Record, row_of
from bertcli.tokenizing.batch import Layout, TokenBatch
from bertcli.tokenizing.tokenizer import Tokenizer

Prepare = Callable[[Sequence[Record]], Sequence[Record]]
RECORDS_PER_WINDOW = 1024  # tokenized together; enough to keep every core busy
BLOCKS_AHEAD = 8  # blocks of a file tokenized ahead of the writer, about 1 MB each
MAX_THREADS = 8  # that create arrays; the GIL limits the gain from more

COUNT_FIELDS = ("length", "truncated")
OPTIONAL_FIELDS = {"pair", "truncated"}  # only some records have them

_NumberedRecords = tuple[Sequence[Record], int]  # records, and the index of the first one


@dataclass
class TokenCounts:
    """Counts over a run, reported at its end."""

    records: int = 0
    tokens: int = 0
    truncated: int = 0  # records that lost tokens
    cut: int = 0  # tokens that they lost
    too_long: int = 0  # texts longer than the model's limit, not truncated
    longest: int = 0
    literals: int = 0  # special tokens written in the text
    empty: int = 0  # texts without a character

    def summary(self) -> dict[str, Any]:
        """Return the number of texts and the number of their tokens."""
        return {"texts": self.records, "tokens": self.tokens}

    def add(self, batch: TokenBatch, limit: int | None = None) -> None:
        """Count the records of one batch."""
        samples = batch.samples
        self.records += len(samples if isinstance(samples, range) else {*samples})
        self.tokens += len(batch.ids)
        self.longest = max(self.longest, *batch.lengths, 0)
        if batch.dropped_tokens.count(0) < len(batch):
            rows = zip(samples, batch.dropped_tokens, strict=True)
            self.truncated += len({sample for sample, dropped in rows if dropped})
        self.cut += sum(batch.dropped_tokens)
        texts = batch.records.texts
        pairs = batch.records.pairs
        if pairs is not None:
            texts = [text or pair or "" for text, pair in zip(texts, pairs, strict=True)]
        self.empty += texts.count("") + texts.count([])  # faster than testing each text
        if windows := batch.records.windows:
            self.too_long += sum(bool(window and window.starts_long_text) for window in windows)
        elif limit is not None and self.longest > limit:
            self.too_long += sum(map(limit.__lt__, batch.lengths))

    def truncation(self, limit: int | None, texts: str = "texts") -> str:
        """Return "1 of 2 texts truncated to 8 tokens (3 dropped)", or "" if none was truncated."""
        if not self.truncated:
            return ""
        return (
            f"{self.truncated:,} of {self.records:,} {texts} truncated to {limit} tokens "
            f"({self.cut:,} dropped)"
        )

    def several_windows(self, limit: int) -> str:
        """Return "1 text is longer than 512 tokens: encoded in several windows", or ""."""
        if not self.too_long:
            return ""
        texts = counted(self.too_long, "text is", "texts are")
        return f"{texts} longer than {limit} tokens: encoded in several windows"

    def emptiness(self) -> str:
        """Return the number of empty texts as a message, or "" if there are none."""
        return f"{counted(self.empty, 'text was', 'texts were')} empty" if self.empty else ""

    def merge(self, other: TokenCounts) -> None:
        """Add the counts of another part of the same run."""
        longest = max(self.longest, other.longest)
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))
        self.longest = longest


@dataclass
class ReaderRun:
    """One pass over a source. Iterate once; ``tally`` and ``reader`` hold the counts.

    ``done`` is where a resumed run starts, once everything yielded before the current window is
    written: the number of records read, the number of those that the run skipped, and the tally.
    """

    reader: Reader
    start: int = field(default=0, kw_only=True)  # records done by an earlier run
    skipped: int = field(default=0, kw_only=True)  # by the run, not by the reader
    tally: TokenCounts = field(default_factory=TokenCounts, kw_only=True)
    done: dict[str, Any] | None = field(default=None, init=False)
    committed: int = field(default=0, init=False)  # records whose rows survive a kill
    all_records: Sequence[Sequence[Record]] | None = field(default=None, init=False)

    def begin_after(self, done: Mapping[str, Any]) -> None:
        """Start after the records that another run has done."""
        self.start = self.committed = done["records"]
        self.skipped = done["skipped"]
        self.done = dict(done)
        self.reader.count_skipped(self.skipped)
        self.tally.merge(TokenCounts(**done["tally"]))

    def read_all(self) -> Sequence[Sequence[Record]]:
        """Read all records into memory, and return them. `blocks` yields them again."""
        self.all_records = [*self.reader.blocks()]
        return self.all_records

    def blocks(self) -> Iterator[Sequence[Record]]:
        """Yield blocks of the records that are not done."""
        done = self.start
        for block in self.reader.blocks() if self.all_records is None else self.all_records:
            if done < len(block):
                yield block[done:] if done else block
            done = max(0, done - len(block))

    def finish(self, records: int) -> None:
        """Record that the first ``records`` records of the reader are done."""
        self.done = {"records": records, "skipped": self.skipped, "tally": asdict(self.tally)}


@dataclass
class TokenizeRun(ReaderRun):
    """The tokens of the records of a source.

    Records are tokenized in groups of ``window`` records, the option of that name. The windows of a
    long text are rows of its record (`truncation`).
    """

    tokenizer: Tokenizer
    layout: Layout
    # Records tokenized together; None: RECORDS_PER_WINDOW, or as they were read.
    window: int | None = None
    fixed_windows: bool = False  # True: windows do not depend on the speed of the input
    characters: int = CHARACTERS  # end a group early when it has this many
    growing: bool = False  # True: the first groups are small
    prepare: Prepare | None = None  # applied to the records first
    remaining: Iterable[Sequence[Record]] | None = None  # the records not done, if known

    def __iter__(self) -> Iterator[TokenBatch]:
        """Yield the tokens of the records in input order, one group of records at a time."""
        for counts, batch in self.counted():
            self.tally.merge(counts)
            if len(batch):
                yield batch
            self.finish(self.end)

    def counted(self) -> Iterator[tuple[TokenCounts, TokenBatch]]:
        """Yield counts and tokens of each group of records, for callers that keep the tally.

        A batch may be empty. ``end`` is the number of records up to the end of the group.

        If the layout fits arrays, several blocks are tokenized in parallel threads: most of that
        work releases the GIL.
        """
        groups: Iterable[Sequence[Record]] = self.remaining or self.blocks()
        max_ahead = BLOCKS_AHEAD if self.window is None and self.layout.is_flat else 1
        if max_ahead == 1:
            groups = record_windows(
                groups,
                self.window or RECORDS_PER_WINDOW,
                fixed_windows=self.fixed_windows,
                characters=self.characters,
                growing_from=self.start if self.growing else None,
            )
        numbered = self._numbered(groups)
        expected_characters = size_on_disk(self.reader.source.paths) or 0
        self.tokenizer.expected_characters = expected_characters
        if expected_characters:
            from bertcli.io.threads import run_ahead

            threads = min(max_ahead, MAX_THREADS, cores())
            results = run_ahead(numbered, self._tokenize, threads=threads, max_waiting=max_ahead)
        else:  # texts may be typed in: answer one by one
            results = map(self._tokenize, numbered)
        for counts, batch, errors, self.end in results:
            for error in errors:
                self.reader.skip(error)
            self.skipped += len(errors)
            yield counts, batch

    def _numbered(self, groups: Iterable[Sequence[Record]]) -> Iterator[_NumberedRecords]:
        """Yield groups of records, each with the index of its first record."""
        first = self.start
        for records in groups:
            yield records, first
            first += len(records)

    def _tokenize(
        self, numbered_records: _NumberedRecords
    ) -> tuple[TokenCounts, TokenBatch, list[InputError], int]:
        """Return the counts and tokens of records, the errors of skipped ones, and their end."""
        records, first = numbered_records
        errors: list[InputError] = []
        texts = self.prepare(records) if self.prepare else records
        counts = TokenCounts(literals=self.tokenizer.count_literals(texts))
        batch = self.tokenizer.encode_records(texts, self.layout, skip=errors.append, first=first)
        if self.prepare:  # counts and errors refer to the records as read
            rows = [sample - first for sample in batch.samples]
            batch = replace(batch, records=RecordBatch.of(records).take(rows))
        counts.add(batch, self.tokenizer.limit)
        return counts, batch, errors, first + len(records)


@dataclass(frozen=True)
class TokenOutput:
    """The output of a tokenize run: columns, fields and file format.

    ``other_fields`` are those besides the columns: ``length``, ``text``, ``pair``,
    ``overflow_to_sample_mapping`` and ``truncated``. If nothing is written per record, use
    `TokenizeRun` alone.
    """

    layout: Layout
    other_fields: tuple[str, ...] = ()
    file_format: str = JSONL
    ragged: bool = False  # True: flat arrays in npz and safetensors

    @property
    def fields(self) -> frozenset[str]:
        """The names of the output fields, which no carried field may have."""
        return frozenset({"id", *self.layout.columns, *self.other_fields})

    def run(
        self, reader: Reader, tokenizer: Tokenizer, window: int = RECORDS_PER_WINDOW
    ) -> TokenizeRun:
        """Return the run over these records.

        With padding "longest", ``window`` records are padded together.
        """
        if self.layout.padding == "longest":
            return TokenizeRun(reader, tokenizer, self.layout, window, fixed_windows=True)
        return TokenizeRun(reader, tokenizer, self.layout)

    def rows(
        self, batch: TokenBatch, lists: Mapping[str, Iterable[Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Return the output rows of a batch. ``lists`` replaces the token columns.

        Raises InputError if a carried field has the name of an output field.
        """
        if lists is None:
            lists = {name: batch.lists(name) for name in self.layout.columns}
        columns = {**lists, **self._other_columns(batch)}
        values = zip(*columns.values(), strict=True) if columns else repeat((), len(batch))
        rows = [dict(zip(columns, cells, strict=True)) for cells in values]
        if self.file_format not in TABULAR:
            for name in OPTIONAL_FIELDS.intersection(columns):
                for row in rows:
                    if row[name] in (None, 0):
                        del row[name]
        if batch.records.is_plain:
            return rows
        return [row_of(record, row) for record, row in zip(batch.records, rows, strict=True)]

    def table(self, batch: TokenBatch) -> Table:
        """Return the output of a batch of arrays as a table of columns."""
        import numpy as np  # pyarrow would import pandas to inspect lists

        ids = batch.records.ids or ()
        carried_fields = batch.records.extras or ()
        columns: dict[str, Any] = {}
        if any(key is not None for key in ids):
            columns["id"] = ids
        for name in self.layout.columns:
            columns[name] = FlatLists(batch.columns[name], batch.offsets)
        for name, values in self._other_columns(batch).items():
            columns[name] = np.array(values) if name in COUNT_FIELDS else values
        for name in fields_of(filter(None, carried_fields)):
            columns[name] = [(fields or {}).get(name) for fields in carried_fields]
        return Table(columns, len(batch))

    def _other_columns(self, batch: TokenBatch) -> dict[str, Any]:
        """Return the columns of ``other_fields``. Records without a value have None or 0."""
        records = batch.records
        columns = {
            "length": batch.lengths,
            "text": records.texts,
            "pair": records.pairs or [None] * len(batch),
            "overflow_to_sample_mapping": batch.samples,
            "truncated": batch.dropped_tokens,
        }
        names = self.other_fields
        if self.file_format not in TABULAR and not any(batch.dropped_tokens):
            names = tuple(name for name in names if name != "truncated")
        return {name: columns[name] for name in names}

    def header(self, run: TokenizeRun) -> TableHeader:
        """Return the header row of a table without records: every column, with its type.

        Lists have the length that padding gives to every text.
        """
        (row,) = self.rows(run.tokenizer.encode_records([Record("")], self.layout))
        if self.layout.padding != "max_length":
            row |= {name: [] for name, value in row.items() if isinstance(value, list)}
        return run.reader.header(row)

    @property
    def writer(self) -> str:
        """The name of the writer for the file format."""
        if self.file_format in LINES:
            return ENCODED_ROWS
        return FORMATS[self.file_format].ragged_writer if self.ragged else self.file_format

    def write(
        self,
        run: TokenizeRun,
        batches: Iterable[TokenBatch],
        write: Callable[..., None],
        *,
        as_rows: bool = False,
    ) -> None:
        """Pass the batches of a run to a writer, as rows or as what it writes fastest.

        A run without records writes an empty table.
        """
        is_table = self.file_format not in LINES
        has_other_fields = False
        for batch in batches:
            write(self.rows(batch) if as_rows and is_table else self._writer_input(batch))
            records = batch.records
            has_other_fields |= records.ids is not None or records.extras is not None
        if has_other_fields and self.file_format in ARRAYS:
            LOG.note(f"{self.file_format} holds no ids, files and lines: use parquet to keep them")
        if is_table and not run.tally.records:
            write([self.header(run)])

    def _writer_input(self, batch: TokenBatch) -> Any:
        """Return a batch as the writer of the file format takes it: bytes, rows or a table."""
        file_format = self.file_format
        if file_format == "table" and self.layout.columns:
            return batch
        if file_format in LINES:
            return [self._lines(batch)]
        if batch.has_arrays and file_format in BINARY:
            return self.table(batch)
        return self.rows(batch)

    def _lines(self, batch: TokenBatch) -> bytes:
        """Return a batch as JSON lines or as plain lines."""
        is_json = self.file_format == JSONL
        if batch.records.is_plain and self.fields == {"id", "length"}:
            line = b'{"length":%d}\n' if is_json else b"%d\n"
            return b"".join([line % length for length in batch.lengths])
        if batch.has_arrays and is_json and self.layout.columns:
            from bertcli.tokenizing.ragged import HOLE, fill_json_lines

            if batch.records.is_plain and not self._other_columns(batch):
                template = to_lines([{"input_ids": HOLE}]) * len(batch)
            else:
                rows = self.rows(batch, {"input_ids": repeat(HOLE, len(batch))})
                template = to_lines(rows)
            return fill_json_lines(template, batch, self.layout.columns)
        rows = self.rows(batch)
        return (to_lines(rows) if is_json else "".join(map(to_text, rows))).encode()


@dataclass
class DecodeRun(ReaderRun):
    """Decoded rows: the record's id, ``text`` or ``tokens``, then the record's other fields.

    An id outside the vocabulary raises InputError with the record's location, or the record is
    skipped.
    """

    tokenizer: Tokenizer
    field_name: str  # "text" or "tokens"
    skip_special: bool
    clean_up: bool | None

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        end = self.start
        for records in record_windows(self.blocks(), RECORDS_PER_WINDOW):
            rows = self.reader.collect(self._row, records)
            self.skipped += len(records) - len(rows)
            self.tally.records += len(rows)
            yield rows
            end += len(records)
            self.finish(end)

    def _row(self, record: Record) -> dict[str, Any]:
        ids = record.ids or []
        skip = self.skip_special
        value: Any
        try:
            if self.field_name == "tokens":
                value = self.tokenizer.convert_ids_to_tokens(ids, skip)
            else:
                value = self.tokenizer.decode(ids, skip, self.clean_up)
        except InputError as unknown:
            raise InputError(f"{record.where}: {unknown.marked}", unknown.marked_hint) from None
        return row_of(record, {self.field_name: value})
