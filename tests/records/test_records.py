"""Every input format, round trips of anything that can be written in it, and what is broken."""

import csv
import gzip
import io
import json
import re
from dataclasses import replace

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertcli import Source
from bertcli.errors import InputError
from bertcli.formats import delimited
from bertcli.io import streams
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.records.record import Record

LINES = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")))
CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)
CHUNKS = st.sampled_from([1, 3, 7, 64, 1 << 18])


def records(path, **source):
    return list(Reader(Input.of(paths=(str(path),), **source)))


def texts(path, **source):
    return [record.text for record in records(path, **source)]


def skipped(path, **source):
    """Return the records that can be read and the messages about the others."""
    said = []
    reader = Reader(Input.of(paths=(str(path),), on_error="skip", **source))
    reader.warn = said.append
    found = list(reader)
    assert reader.skipped == len(said)
    return found, said


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def chunk(monkeypatch):
    """Set how many bytes are read at once: lines end anywhere in them."""
    return lambda size: [
        monkeypatch.setattr(module, "CHUNK", size) for module in (delimited, streams)
    ]


@given(lines=LINES, size=CHUNKS, end=st.sampled_from(["\n", ""]), crlf=st.booleans())
def test_lines(tmp_path, chunk, lines, size, end, crlf):
    chunk(size)
    between = "\r\n" if crlf else "\n"
    path = write(tmp_path, "a.txt", "\ufeff" + between.join(lines) + (end and between))
    expected = [line.removesuffix("\r") for line in lines]
    if expected and not end and not lines[-1]:
        expected.pop()  # nothing after the last line end is no line
    found = records(path)
    assert [record.text for record in found] == (expected or ([""] if end else []))
    assert [record.line for record in found] == list(range(1, len(found) + 1))
    assert {record.file for record in found} <= {str(path)}


@given(lines=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
@example(lines=["a\r", "b\r\n", "\r", "c"])
@example(lines=["a", "b\r"] * 10)
def test_texts_between_nuls(tmp_path, lines):
    """As `xargs -0` reads: everything but the NUL belongs to the text, a line end as well."""
    path = write(tmp_path, "a.txt", "".join(line + "\0" for line in lines))
    expected = [lines[0].removeprefix("\ufeff"), *lines[1:]] if lines else []
    assert texts(path, null=True) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1", "gb18030"])
@given(data=st.data(), size=CHUNKS)
def test_encodings(tmp_path, chunk, encoding, data, size):
    chunk(size)
    odd = "\r\n\ufeff"
    letters = st.characters(codec=encoding, exclude_categories=["Cs"], exclude_characters=odd)
    lines = data.draw(st.lists(st.text(letters, min_size=1), min_size=1))
    path = write(tmp_path, "a.txt", "\n".join(lines).encode(encoding))
    assert texts(path, encoding=encoding) == lines
    rows = "".join(json.dumps({"text": line}, ensure_ascii=False) + "\r\n" for line in lines)
    path = write(tmp_path, "a.jsonl", rows.encode(encoding))
    assert texts(path, encoding=encoding) == lines


@pytest.mark.parametrize("size", [1, 5, 1 << 18])
def test_a_bad_byte_is_named_by_file_line_and_offset(tmp_path, chunk, size):
    chunk(size)
    path = write(tmp_path, "a.txt", b"\xef\xbb\xbfone\r\ntwo\nth\xffree\n\xc3\n")
    with pytest.raises(InputError, match=r"a\.txt:3: byte 14 \(0xff\) is not valid utf-8"):
        records(path)
    found, said = skipped(path)
    assert [record.text for record in found] == ["one", "two"]
    assert ["byte 14" in said[0], "a.txt:4: byte 19 (0xc3)" in said[1]] == [True, True]
    reader = Reader(Input.of(paths=(str(path),), encoding_errors="replace"))
    assert [record.text for record in reader] == ["one", "two", "th\ufffdree", "\ufffd"]
    assert reader.replaced == 2


def test_a_bad_byte_of_utf_16(tmp_path):
    path = write(tmp_path, "a.txt", "ab\n".encode("utf-16-le") + b"\x00\xd8x\0")
    with pytest.raises(InputError, match=r"a\.txt: byte 6 \(0x00\) is not valid utf-16-le"):
        records(path, encoding="utf-16-le")


ROW = st.fixed_dictionaries(
    {"text": st.text(st.characters(exclude_categories=["Cs"]))},
    optional={
        "pair": st.none() | CELL,
        "id": st.none() | st.integers() | CELL,
        "more": st.lists(st.integers(), max_size=3) | st.booleans() | st.floats(allow_nan=False),
    },
)


@given(rows=st.lists(ROW), ascii=st.booleans(), blank=st.sampled_from(["", "\n", "  \r\n"]))
def test_jsonl(tmp_path, rows, ascii, blank):
    lines = [json.dumps(row, ensure_ascii=ascii) + "\n" + blank for row in rows]
    path = write(tmp_path, "a.jsonl", "".join(lines))
    step = 1 + bool(blank)
    more = [{name: row[name] for name in row if name != "id"} for row in rows]
    assert records(path, keep="*") == [
        Record(row["text"], row.get("pair"), row.get("id"), extra, str(path), 1 + at * step)
        for at, (row, extra) in enumerate(zip(rows, more, strict=True))
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", r"expected a JSON object, found \[1\]"),
        ('"a"', 'expected a JSON object, found "a"'),
        ('{"txt": "a"}', r"field 'text' not found"),
        ('{"text": 1}', "the text is 1, not a string"),
        ('{"text": null}', "the text is null, not a string"),
        ('{"text": ["a"]}', r'the text is \["a"\], not a string'),
        ('{"text": {}}', r"the text is \{\}, not a string"),
        ('{"text": true}', "the text is true, not a string"),
        ('{"text": "a", "pair": 2}', "the text is 2, not a string"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "not valid JSON|nested too deeply"),
    ],
)
def test_a_broken_line_of_json(tmp_path, line, message):
    path = write(tmp_path, "a.jsonl", f'{{"text": "ok"}}\n\n{line}\n{{"text": "after"}}\n')
    with pytest.raises(InputError, match=rf"a\.jsonl:3: .*({message})"):
        records(path)
    found, said = skipped(path)
    assert [(record.text, record.line) for record in found] == [("ok", 1), ("after", 4)]
    assert len(said) == 1


def as_csv(rows, end="\n", **options):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, **options).writerows(rows)
    return text.getvalue()


@settings(max_examples=150)
@given(rows=st.lists(st.tuples(CELL, CELL, CELL)), size=CHUNKS, end=st.sampled_from(["\n", "\r\n"]))
def test_csv(tmp_path, chunk, rows, size, end):
    """Quoted line ends and quotation marks come back, and each row knows the line it begins on."""
    chunk(size)
    path = write(tmp_path, "a.csv", as_csv([("id", "text", "pair"), *rows], end))
    line, expected = 2, []
    for key, text, pair in rows:  # an empty cell is none
        expected.append(Record(text, pair or None, key or None, None, str(path), line))
        line += 1 + sum(cell.count("\n") for cell in (key, text, pair))
    assert records(path) == expected


@given(rows=st.lists(st.tuples(CELL, CELL)))
def test_tsv_takes_quotation_marks_as_they_are(tmp_path, rows):
    clean = [[re.sub("[\t\n]", " ", cell) for cell in row] for row in rows]
    lines = ["text\tpair", *("\t".join(row) for row in clean)]
    path = write(tmp_path, "a.tsv", "\n".join(lines) + "\n")
    found = [[record.text, record.pair or ""] for record in records(path)]
    assert found == clean
    path = write(tmp_path, "pairs.tsv", "".join(line + "\n" for line in lines[1:]))
    found = records(path, are_pairs=True)
    expected = [(cells, at) for at, cells in enumerate(clean, 1)]
    if expected and expected[0][0][0].startswith("\ufeff"):
        expected[0][0][0] = expected[0][0][0][1:]
    assert [([record.text, record.pair], record.line) for record in found] == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,text\n1,a\n2,b,c\n", r"a\.csv:3: 3 columns, but the header has 2"),
        ("a.csv", 'id,text\n1,"a\nb"\n2\n', r"a\.csv:4: 1 column, but the header has 2"),
        ("a.csv", 'text\n"a\n', r"a\.csv:2: not valid CSV"),
        ("a.csv", 'text\n"a"b\n', r"a\.csv:2: not valid CSV"),
        ("a.csv", "txt,id\na,b\n", r"a\.csv: field 'text' not found"),
        ("a.tsv", "text\ta\nx\n", r"a\.tsv:2: 1 column, but the header has 2"),
    ],
)
def test_a_broken_table(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        records(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a\tb\nc\td\te\n", r"a\.tsv:2: 3 columns, but a pair has two"),
        ("a.tsv", "a\tb\nc\n", r"a\.tsv:2: 1 column, but a pair has two"),
        ("a.txt", "a\tb\nc\n", r"a\.txt:2: 1 column, but a pair has two"),
        ("a.csv", "text,pair\na,b\nc,d,e\n", r"a\.csv:3: 3 columns, but a pair has two"),
    ],
)
def test_pairs_that_are_none(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message):
        records(path, are_pairs=True)
    assert [r.text for r in skipped(path, are_pairs=True)[0]] == ["a"]


@given(
    rows=st.lists(st.tuples(CELL, st.none() | CELL, st.none() | st.integers(-99, 99)), max_size=30),
    size=st.integers(1, 9),
)
def test_parquet(tmp_path, rows, size):
    import pyarrow
    from pyarrow import parquet

    names = {"text": pyarrow.string(), "pair": pyarrow.string(), "id": pyarrow.int64()}
    table = pyarrow.table(
        {
            name: pyarrow.array([row[at] for row in rows], kind)
            for at, (name, kind) in enumerate(names.items())
        }
    )
    path = tmp_path / "a.parquet"
    parquet.write_table(table.append_column("more", table["id"]), path, row_group_size=size)
    assert records(path, keep="more") == [
        Record(text, pair, key, {"more": key}, str(path), at)
        for at, (text, pair, key) in enumerate(rows, 1)
    ]


def packed(name, content):
    if name.endswith(".gz"):
        return gzip.compress(content, mtime=0)
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


LONG = "".join(f"line {n} of {n * n} ü\n" for n in range(60)).encode()


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
@pytest.mark.parametrize("size", [1, 100, 1 << 18])
def test_packed_files(tmp_path, chunk, name, size):
    chunk(size)
    path = write(tmp_path, name, packed(name, LONG))
    assert texts(path) == LONG.decode().splitlines()
    path = write(tmp_path, name, packed(name, LONG) + packed(name, b"") + packed(name, b"more"))
    assert texts(path) == [*LONG.decode().splitlines(), "more"]
    assert texts(write(tmp_path, name, packed(name, b""))) == []


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_a_packed_file_that_is_cut_off(tmp_path, name):
    """At any byte: what is missing is never passed over in silence."""
    whole = packed(name, LONG)
    for cut in range(1, len(whole)):
        path = write(tmp_path, name, whole[:cut])
        with pytest.raises(InputError, match=rf"{name}: "):
            records(path)
        with pytest.raises(InputError):
            skipped(path)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_a_packed_file_that_is_garbled(tmp_path, name):
    whole = packed(name, LONG)
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 0x55
        path = write(tmp_path, name, bytes(broken))
        try:
            found = texts(path)
        except InputError as error:
            assert name in str(error)
        else:
            assert found == LONG.decode().splitlines()  # a time stamp or a name, not the data


def test_surrogates_in_kept_fields(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "a", "id": "\\ud83d\\ude00", "note": ["\\ud800"]}\n')
    with pytest.raises(InputError, match=r"in.jsonl:1: a field holds half of a surrogate pair"):
        list(Reader(Input.of(paths=(str(file),), keep="*")))
    (record,) = Reader(Input.of(paths=(str(file),), keep="*", encoding_errors="replace"))
    assert (record.id, record.extra) == ("😀", {"text": "a", "note": ["\ufffd"]})


def test_a_source_has_all_options_at_one_level(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("body;pair\nnaïve;x\n".encode("latin-1"))
    source = Source(paths=(str(path),), text_field="body", delimiter=";", single=True)
    source = replace(source, encoding="latin-1")
    assert (source.text_field, source.delimiter, source.single) == ("body", ";", True)
    reader = Reader(source)
    assert [(record.text, record.pair) for record in reader] == [("naïve", None)]
    assert (reader.source.encoding, reader.source.placed) == ("latin-1", False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'field'"):
        Source(field="body")
    with pytest.raises(AttributeError, match="no attribute 'field'"):
        _ = source.field
