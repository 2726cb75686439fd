"""What `bertcli tokenize` writes: lines of JSON, counts, tables and arrays.

    task = Task(Layout())
    output = TokenOutput(task.run(reader, tokenizer, window), task)
    with open_writer(path, output.form) as put:
        output.write(output, put)

Many records go as arrays from the tokenizer to the file (`ragged` makes lines of them), few
as rows. The bytes are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bertcli.files.jsonl import to_lines
from bertcli.files.tables import ColumnTable, FlatLists
from bertcli.files.writers import TENSORS, to_text
from bertcli.records.reader import Reader
from bertcli.records.records import carried
from bertcli.tokenizing.columns import Encoded, Layout, RaggedBatch
from bertcli.tokenizing.run import (
    WINDOW,
    TokenizeRun,
    count_row,
    fields_written,
    header,
    row,
)
from bertcli.tokenizing.tokenizer import Tokenizer

LINES, TABULAR = ("jsonl", "txt"), ("csv", "tsv", "parquet")


@dataclass(frozen=True)
class Task:
    """What is to be written of records, and in which form."""

    layout: Layout
    extra: tuple[str, ...] = ()
    form: str = "jsonl"
    only_count: bool = False
    ragged: bool = False  # arrays of the forms npz and safetensors are flat

    @property
    def together(self) -> bool:
        """Whether the records of a window are padded to one length."""
        return self.layout.padding == "longest"

    @property
    def fields(self) -> frozenset[str]:
        """The names that are written, which no carried field may have."""
        return frozenset(fields_written(self.layout, self.extra, only_count=self.only_count))

    def run(self, reader: Reader, tokenizer: Tokenizer, window: int) -> TokenizeRun:
        """Return the run over these records; ``window`` of them are padded together."""
        size = window if self.together else WINDOW
        return TokenizeRun(reader, tokenizer, self.layout, size, full=self.together)


@dataclass
class TokenOutput:
    """What a run writes, batch by batch."""

    run: TokenizeRun
    task: Task

    @property
    def form(self) -> str:
        """The format of the writer."""
        form = self.task.form
        return "finished" if form in LINES else f"ragged {form}" if self.task.ragged else form

    def __iter__(self) -> Iterator[RaggedBatch]:
        """Yield the tokens of the records, a batch at a time."""
        return self.run.batches()

    def write(self, batches: Iterable[RaggedBatch], put: Callable[..., None]) -> None:
        """Write batches, and what begins a table that has no rows."""
        for batch in batches:
            put(self._written(batch))
        if self.task.form not in LINES and not self.run.tally.records:
            put([header(self.run, self.task.extra, only_count=self.task.only_count)])

    def _written(self, batch: RaggedBatch) -> Any:
        """Return what the writer of the format takes: bytes, rows or a table of columns."""
        form, only_count, layout = self.task.form, self.task.only_count, self.task.layout
        if only_count and form in LINES and batch.records.is_plain:
            line = b"%d\n" if form == "txt" else b'{"length":%d}\n'
            return [b"".join([line % length for length in batch.lengths])]
        if not (only_count or isinstance(batch.ids, list)):
            if form in (*TENSORS, "parquet"):
                return self._table(batch)
            if form == "jsonl":
                from bertcli.tokenizing.ragged import ragged_lines

                return ragged_lines(batch, layout, self.task.extra)
        rows = list(map(self._row, batch.encoded(layout.columns)))
        if form in LINES:
            text = to_lines(rows) if form == "jsonl" else "".join(map(to_text, rows))
            return [text.encode()]
        return rows

    def _row(self, item: Encoded) -> dict[str, Any]:
        task = self.task
        if task.only_count:
            return count_row(item)
        return row(item, task.layout, extra=task.extra, sparse=task.form not in TABULAR)

    def _table(self, batch: RaggedBatch) -> ColumnTable:
        """Return the columns of a batch, those of tokens as they are."""
        import numpy as np  # pyarrow would import pandas to look at lists

        layout, records = self.task.layout, batch.records
        columns: dict[str, Any] = {
            name: FlatLists(batch.columns[name], batch.offsets) for name in layout.columns
        }
        if "length" in self.task.extra:
            columns["length"] = np.diff(batch.offsets)
        if "text" in self.task.extra:
            columns["text"] = records.texts
            columns["pair"] = records.pairs or [None] * len(batch)
        if layout.truncation != "do_not_truncate":
            columns["truncated"] = np.array(batch.cut, np.int64)
        if records.extras is None:
            ids = {} if records.ids is None else {"id": records.ids}
            led = records.ids is not None and records.ids[0] is not None
            return ColumnTable(ids | columns if led else columns | ids, len(batch))
        rows = [
            ({} if record.id is None else {"id": record.id}, carried(columns, record))
            for record in records
        ]
        names = dict.fromkeys(name for key, extra in rows for name in (*key, *columns, *extra))
        for name in names.keys() - columns.keys():
            columns[name] = [key.get(name, extra.get(name)) for key, extra in rows]
        return ColumnTable({name: columns[name] for name in names}, len(batch))
