"""Every output format read back by its own library, and files that appear whole or not at all."""

import csv
import json
import os
import stat
import threading
import time

import numpy
import pytest
from front import DEADLINE, bad
from hypothesis import given
from hypothesis import strategies as st

from bertcli.errors import OutputError
from bertcli.formats.tables import FlatLists, Table
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.runs.row_run import streamed_rows

FORMATS = ["jsonl", "csv", "tsv", "txt", "npy", "npz", "safetensors", "parquet"]
ROWS = [{"input_ids": [101, 7, 102], "attention_mask": [1, 1, 1]}] * 2

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0"), min_size=1)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
VALUE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | IDS
ROW = st.dictionaries(TEXT, VALUE, max_size=4) | st.fixed_dictionaries(
    {"id": st.integers() | TEXT, "input_ids": IDS, "tokens": st.lists(TEXT), "text": TEXT}
)


def written(path, form, *batches, **options):
    """Write batches of rows and return the bytes of the file."""
    with streamed_rows(path, form, **options) as write:
        for rows in batches:
            write(rows)
    return path.read_bytes() if path.exists() else None


@given(batches=st.lists(st.lists(ROW, max_size=4), max_size=3))
def test_jsonl(tmp_path, batches):
    path = tmp_path / "a.jsonl"
    content = written(path, "jsonl", *batches, overwrite=True) or b""
    rows = [row for batch in batches for row in batch]
    assert [json.loads(line) for line in content.decode().split("\n")[:-1]] == rows
    path.unlink(missing_ok=True)


@given(rows=st.lists(st.tuples(TEXT, IDS, st.none() | st.integers()), min_size=1, max_size=8))
def test_csv(tmp_path, rows):
    """Any text comes back; a list is JSON in its cell; rows of several calls are one table."""
    path = tmp_path / "a.csv"
    dicts = [{"text": text, "input_ids": ids, "n": n} for text, ids, n in rows]
    written(path, "csv", dicts[:2], dicts[2:], overwrite=True)
    with path.open(newline="", encoding="utf-8") as file:
        header, *found = csv.reader(file)
    assert header == ["text", "input_ids", "n"]
    expected = [[row[0], row[1], "" if row[2] is None else str(row[2])] for row in rows]
    assert [[text, json.loads(ids), n] for text, ids, n in found] == expected


@given(rows=st.lists(st.tuples(PLAIN, IDS), min_size=1, max_size=8))
def test_tsv(tmp_path, rows):
    path = tmp_path / "a.tsv"
    content = written(path, "tsv", [{"t": t, "ids": ids} for t, ids in rows], overwrite=True)
    header, *found = [line.split("\t") for line in content.decode().split("\n")[:-1]]
    assert header == ["t", "ids"]
    assert [(text, json.loads(ids)) for text, ids in found] == rows


@pytest.mark.parametrize("odd", ["a\tb", "a\nb", "a\rb"])
def test_what_tsv_cannot_hold(tmp_path, odd):
    path = tmp_path / "a.tsv"
    with pytest.raises(OutputError, match="holds a tab or a line end"):
        written(path, "tsv", [{"text": "fine"}], [{"text": odd}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_a_field_that_comes_late_is_a_further_column_and_an_id_the_first(tmp_path, form):
    batches = [{"a": 1}], [{"a": 1, "b": 2}], [{"id": "x", "b": 3}]
    late = written(tmp_path / "late", form, *batches)
    at_once = [{"id": None, "a": 1, "b": None}, {"a": 1, "b": 2}, {"id": "x", "a": None, "b": 3}]
    assert late == written(tmp_path / "at once", form, at_once)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "id": st.none() | st.integers(-(2**63), 2**63 - 1),
                "input_ids": st.lists(st.integers(0, 2**31 - 1)),
                "attention_mask": st.lists(st.integers(0, 1)),
                "tokens": st.lists(TEXT),
                "offset_mapping": st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=2)),
                "word_ids": st.lists(st.none() | st.integers(0, 99)),
                "text": st.none() | TEXT,
            }
        ),
        min_size=1,
        max_size=6,
    ),
    cut=st.integers(1, 6),
)
def test_parquet(tmp_path, rows, cut):
    from pyarrow import parquet

    for row in rows:
        row["id"] = rows[0]["id"] and (row["id"] or 0)  # the first rows set the type of a field
        row["text"] = rows[0]["text"] and (row["text"] or "")
    path = tmp_path / "a.parquet"
    written(path, "parquet", rows[:cut], rows[cut:], overwrite=True)
    table = parquet.read_table(path)
    assert table.to_pylist() == rows
    assert str(table.schema.field("input_ids").type) == "list<element: int32>"
    found = Reader(Input.of(paths=(str(path),), ids=True))
    assert [record.ids for record in found] == [row["input_ids"] for row in rows]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1, 2], ["x", 3], ["1", "2", "x", "3"]),
        ([1, None], [0.5], [1.0, None, 0.5]),
        ([True], [2], ["true", "2"]),
        ([[1]], [["x"], "y"], ["[1]", '["x"]', "y"]),
        ([1], [1 << 80], ["1", str(1 << 80)]),
    ],
)
@pytest.mark.parametrize("columns", [False, True])
def test_a_column_becomes_wider_where_later_rows_need_it(
    tmp_path, before, after, expected, columns
):
    """Nothing is lost: a column has the type that holds all its values."""
    from pyarrow import parquet

    ids = [101, 102]
    flat = FlatLists(numpy.array([101, 102], numpy.uint32), numpy.array([0, 2]))

    def block(value):
        if columns:
            return Table({"id": [value], "input_ids": flat}, 1)
        return [{"id": value, "input_ids": ids}]

    path = tmp_path / "a.parquet"
    written(path, "parquet", *map(block, (*before, *after)))
    table = parquet.read_table(path)
    assert table["id"].to_pylist() == expected
    assert table["input_ids"].to_pylist() == [[101, 102]] * len(expected)
    assert str(table.schema.field("input_ids").type) == "list<element: int32>"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_a_thread_writes_parquet(tmp_path, monkeypatch):
    """The writer is not closed while the thread uses it: that ended the process with SIGSEGV."""
    from bertcli.formats import parquet

    was_open = []
    thread_writes = threading.Event()

    class SlowWriter(parquet.ParquetWriter):
        def write_table(self, table):
            thread_writes.set()
            super().write_table(table)
            time.sleep(0.2)
            was_open.append(self.is_open)

    class InterruptedThread(threading.Thread):
        def start(self):  # after a signal here, the pool does not know the thread
            super().start()
            thread_writes.wait(DEADLINE)
            raise KeyboardInterrupt

    monkeypatch.setattr(parquet, "ParquetWriter", SlowWriter)
    monkeypatch.setattr("concurrent.futures.thread.threading.Thread", InterruptedThread)
    lists = FlatLists(numpy.arange(4_096_000, dtype=numpy.uint32), numpy.arange(4097) * 1000)
    path = tmp_path / "a.parquet"
    with pytest.raises(KeyboardInterrupt):
        written(path, "parquet", Table({"input_ids": lists}, 4096))
    assert was_open == [True]
    assert list(tmp_path.iterdir()) == []


class OddError(Exception):
    pass


@pytest.mark.parametrize("suffix", [*FORMATS, "jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize("there", [False, True])
def test_a_failure_leaves_nothing_or_what_was_there(tmp_path, suffix, there):
    path, form = tmp_path / f"a.{suffix}", suffix.partition(".")[0]
    if there:
        path.write_bytes(b"before")
    with pytest.raises(OddError), streamed_rows(path, form, overwrite=True) as write:
        write(ROWS)
        assert not there or path.read_bytes() == b"before"
        raise OddError
    left = [(found.name, found.read_bytes()) for found in tmp_path.iterdir()]
    assert left == [(path.name, b"before")] * there


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_os_error_of_the_caller_is_not_blamed_on_the_output(tmp_path, suffix):
    with pytest.raises(TimeoutError), streamed_rows(tmp_path / f"a.{suffix}", suffix) as write:
        write(ROWS)
        raise TimeoutError
    assert not [*tmp_path.iterdir()]


posix = pytest.mark.skipif(os.name != "posix", reason="links, devices and modes are POSIX")


@posix
def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a.jsonl", tmp_path / "link.jsonl"
    target.write_text("before")
    link.symlink_to(target)
    with pytest.raises(OutputError, match="already exists"):
        written(link, "jsonl", ROWS)
    written(link, "jsonl", ROWS, overwrite=True)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert len(target.read_text().splitlines()) == 2
    target.unlink()
    written(link, "jsonl", ROWS)  # a link to nothing makes the file it names
    assert link.is_symlink()
    assert target.exists()
    assert len(list(tmp_path.rglob("*"))) == 3


@posix
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_mode_is_what_the_umask_says(tmp_path, mask):
    before = os.umask(mask)
    try:
        for form in FORMATS:
            written(tmp_path / f"a.{form}", form, ROWS)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o666 & ~mask}


@posix
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, mode):
    """As the shell's `>` does: a private file does not become readable for all."""
    path = tmp_path / "a.jsonl"
    path.write_text("before")
    path.chmod(mode)
    written(path, "jsonl", ROWS, overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_what_another_run_wrote_meanwhile_is_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    refused = pytest.raises(OutputError, match="already exists")
    with refused, streamed_rows(path, "jsonl") as write:
        write(ROWS)
        path.write_text("of another")
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("of another", [path])
    with streamed_rows(path, "jsonl", overwrite=True) as write:
        write(ROWS)
    assert path.read_text().count("input_ids") == len(ROWS)


def test_a_name_too_long_is_said_to_be_that(tmp_path):
    for command in (["tokenize", "hi"], ["decode", "101"]):
        failed = bad(*command, "-o", tmp_path / f"{'a' * 300}.jsonl")
        assert failed.error.endswith(".jsonl: cannot be written: File name too long")
        failed = bad(*command, "-o", tmp_path / "no" / "a.jsonl")
        assert failed.hint == "create the folder first"
