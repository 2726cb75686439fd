"""Blocks of records: read many lines at once, they are the records that are read one by one."""

import json

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import write_table

from bertcli.errors import InputError
from bertcli.records import formats
from bertcli.records.read_progress import ReadProgress
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.records.source import Source
from bertcli.records.text_block import TextBlock
from bertcli.records.windows import windows

COUNTS = ("records", "skipped", "replaced", "with_id", "without_id", "unfit_ids")


def seen(path, source):
    """Return the records that a source has, its counts, and the messages, or the error."""
    said = []
    reader = Reader(Source(paths=(str(path),), **source), said.append)
    try:
        found = list(reader)
    except InputError as error:
        return str(error), error.hint
    return repr(found), said, [getattr(reader, name) for name in COUNTS]


text = st.one_of(st.text(max_size=4), st.sampled_from(["\ud800", "[a]", "é", ""]))
odd = st.one_of(st.none(), st.integers(-(2**66), 2**66), st.floats(), st.booleans(), st.just([1]))
usual = st.fixed_dictionaries({"text": text, "id": st.one_of(text, st.integers())})
unusual = st.dictionaries(st.sampled_from(["text", "pair", "id", "x"]), st.one_of(text, odd))
lines = st.one_of(usual, usual, unusual, odd).map(json.dumps) | st.sampled_from(
    ["", " ", "{", "\v"]
)
sources = st.fixed_dictionaries(
    {"on_error": st.sampled_from(["fail", "skip"])},
    optional={
        "id_field": st.just("id"),
        "keep": st.sampled_from(["*", "x"]),
        "pre_split": st.booleans(),
        "single": st.booleans(),
        "sentences": st.booleans(),
        "pair_field": st.just("pair"),
        "text_field": st.sampled_from(["text", "id"]),
        "encoding_errors": st.just("replace"),
    },
)


@given(
    lines=st.lists(lines, max_size=6) | st.lists(usual.map(json.dumps), max_size=6), source=sources
)
def test_lines_of_json_together_and_one_by_one(tmp_path, lines, source):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines), "utf-8", errors="surrogatepass")
    found = []
    for few in (1, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(formats, "FEW", few)
            found.append(seen(path, source))
    assert found[0] == found[1]


cells = st.lists(st.sampled_from(["a", "é", "", '"b, c"', '"d']), min_size=3, max_size=4)


@given(
    rows=st.lists(cells.map(lambda row: row[:3]), max_size=5) | st.lists(cells, max_size=5),
    source=sources,
    suffix=st.sampled_from(["csv", "tsv"]),
)
def test_rows_of_text_together_and_one_by_one(tmp_path, rows, source, suffix):
    path, between = tmp_path / f"a.{suffix}", "," if suffix == "csv" else "\t"
    header = ["text", "x", "id"]
    path.write_text("".join(between.join(row) + "\n" for row in [header, *rows]), "utf-8")
    found = [seen(path, source)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadProgress, "block", lambda *given: None)
        found.append(seen(path, source))
    assert found[0] == found[1]


@given(
    texts=st.lists(st.one_of(st.none(), st.text(max_size=4)), min_size=1, max_size=5),
    keys=st.sampled_from([["a"], [1], [None], [1.5], [float("nan")], [b"\xff"], [[1]]]),
    source=sources,
)
def test_rows_of_parquet_together_and_one_by_one(tmp_path, texts, keys, source):
    path = tmp_path / "a.parquet"
    write_table(
        pyarrow.table({"text": texts, "x": keys * len(texts), "id": keys * len(texts)}), path
    )
    found = [seen(path, source)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadProgress, "block", lambda *given: None)
        found.append(seen(path, source))
    assert found[0] == found[1]


fields = st.tuples(
    text,
    st.one_of(st.none(), text),
    st.one_of(st.none(), st.integers()),
    st.one_of(st.none(), st.just({"x": 1})),
    st.sampled_from(["a.txt", "b.txt"]),
    st.integers(1, 9),
)


@given(st.lists(st.lists(fields, max_size=5), max_size=5), st.integers(1, 4), st.booleans())
def test_windows_of_blocks_hold_the_records_in_order(rows, size, full):
    blocks = [[Record(*some) for some in block] for block in rows]
    columns = [TextBlock.of(block) for block in blocks]
    found = list(windows(columns, size, full=full))
    assert [list(window) for window in found] == [
        list(window) for window in windows(blocks, size, full=full)
    ]
    for window in found:
        assert isinstance(window, TextBlock)
        listed = list(window)
        assert [window[at] for at in range(len(window))] == listed
        assert list(window.take([*range(len(listed))][::-1])) == listed[::-1]
        assert list(window[1:]) == listed[1:]
        parts = [part for record in listed for part in record[:2]]
        assert [*filter(None, window.strings)] == [*filter(None, parts)]
