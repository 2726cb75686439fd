"""Folders, globs and lists of names: which files are read, in which order, and what is refused."""

import csv
import gzip
import io
import json
import os

import numpy
import pyarrow.parquet
import pytest
from front import (
    TINY,
    bad,
    call,
    good,
    json_in,
    peak,
    process,
)

FILES = {
    "b.txt": "b\n",
    "a.txt": "a\n",
    "sub/c.jsonl": '{"text": "c"}\n',
    "sub/deep/d.csv": "text\nd\n",
    "sub/e.md": "e\n",
    ".hidden.txt": "no\n",
    ".git/f.txt": "no\n",
    "notes.doc": "no\n",
    "out.npy.manifest.json": "{}",
}


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """A folder ``docs`` in the working directory, with files of several kinds."""
    for name, text in FILES.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "docs" / "g.txt.gz").write_bytes(gzip.compress(b"g\n", mtime=0))
    numpy.save(tmp_path / "docs" / "v.npy", numpy.zeros((1, 2), int))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "docs"


def texts(*argv, **more):
    rows = call("tokenize", "--text", *argv, **more).rows
    return "".join(row["text"].removesuffix("\n") for row in rows)


@pytest.mark.parametrize(
    ("pattern", "read"),
    [
        ("docs", "abgcde"),
        ("docs/", "abgcde"),
        ("docs/sub", "cde"),
        ("docs/*.txt", "ab"),
        ("docs/**/*.md", "e"),
        ("docs/**/*.[ct]*", "abgd"),
        ("./docs/?.txt", "ab"),
        ("d*/sub/*/d.csv", "d"),
        ("docs/sub/**", "cde"),
        ("docs/**/deep/**/*.csv", "d"),
        ("**/c.jsonl", "c"),
        ("docs/.hidden.*", "no"),
    ],
)
def test_a_folder_or_a_glob_stands_for_its_files_in_order(docs, pattern, read):
    assert texts("-i", pattern) == read
    whole = str(docs.parent / pattern)
    assert texts("-i", whole) == read


def test_a_glob_matches_no_hidden_file_wherever_it_starts(docs, monkeypatch):
    (docs.parent / ".data").mkdir()
    for name in ("h.txt", ".i.txt"):
        (docs.parent / ".data" / name).write_text("h\n")
    assert texts("-i", docs.parent / ".data" / "*.txt") == "h"
    monkeypatch.chdir(docs / "sub")
    assert texts("-i", "../*.txt") == "ab"
    assert texts("-i", "../**/*.txt") == "ab"


def test_a_format_reads_every_file_of_a_folder(docs):
    assert texts("-i", "docs/sub", "--input-format", "txt") == '{"text": "c"}textde'


def test_what_exists_is_no_glob(docs):
    (docs / "x[1].txt").write_text("x\n")
    (docs / "x1.txt").write_text("y\n")
    assert texts("-i", "docs/x[1].txt") == "x"
    assert texts("--files-from", "-", stdin="docs/x[1].txt") == "x"
    (docs / "x[1].txt").unlink()
    assert texts("-i", "docs/x[1].txt") == "y"


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_links_to_folders_are_not_followed_and_those_to_files_are_read(docs):
    (docs / "again").symlink_to(docs)
    (docs / "more").symlink_to(docs)
    (docs / "h.txt").symlink_to(docs / "a.txt")
    assert texts("-i", "docs") == "abgacde"
    assert texts("-i", "docs/**/a.txt") == "a"
    assert texts("-i", "docs/again/a.txt") == "a"
    assert texts("-i", "docs/a*/a.txt") == "a"
    (docs / "z.txt").symlink_to(docs / "none")
    assert texts("-i", "docs") == "abgacde"
    assert bad("tokenize", "-i", "docs/z.txt").error == "docs/z.txt: file not found"


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (["-i", "docs/sub/deep/empty"], "docs/sub/deep/empty: no files with a known suffix", ""),
        (["-i", "docs/doc"], "docs/doc: no files with a known suffix", "--input-format"),
        (["-i", "docs/*.none"], "docs/*.none: no matching files", "quote globs"),
        (["-i", "none/**"], "none/**: no matching files", ""),
        (["-i", "docs/a.txt/*"], "docs/a.txt/*: no matching files", ""),
        (["-i", "none"], "none: file not found", "check the path"),
        (["-i", "docs/sub", "-i", "none"], "none: file not found", ""),
    ],
)
def test_names_that_stand_for_no_file(docs, argv, error, hint):
    (docs / "sub/deep/empty").mkdir()
    (docs / "doc").mkdir()
    (docs / "doc/a.doc").touch()
    for command in ("tokenize", "embed", "decode", "classify"):
        done = bad(command, "-m", TINY, *argv)
        assert done.error == error
        assert hint in done.err


def test_a_list_of_names(docs, tmp_path):
    assert texts("--files-from", "-", stdin="docs/b.txt\n\ndocs/a.txt\r\n") == "ba"
    assert texts("--files-from", "-", "-0", stdin="docs/b.txt\0docs/a.txt") == "ba"
    listed = tmp_path / "list"
    listed.write_bytes(b"\xef\xbb\xbfdocs/sub/c.jsonl\ndocs/a.txt\n")
    assert texts("--files-from", listed) == "ca"
    assert texts("-i", "docs/b.txt", "--files-from", listed) == "bca"
    assert texts("-i", "-", "--files-from", listed, stdin="x\n") == "xca"


def test_with_a_list_of_names_texts_still_end_with_their_line(docs):
    """`find -print0` delimits names by NUL, not what is in the files."""
    (docs / "a.txt").write_text("a\nA\n")
    assert texts("--files-from", "-", "-0", stdin="docs/a.txt\0") == "aA"


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_names_that_are_no_text(docs):
    (docs / os.fsdecode(b"\xff\n.txt")).write_text("x\n")
    assert texts("--files-from", "-", "-0", stdin=b"docs/\xff\n.txt\0") == "x"


@pytest.mark.parametrize(
    ("argv", "given", "error"),
    [
        ([], "docs/a.txt\nnone.txt\n", "none.txt: file not found"),
        ([], "", "stdin: the list of files is empty"),
        ([], "\n\n", "stdin: the list of files is empty"),
        (["-0"], "\0docs/none\0", "docs/none: file not found"),
    ],
)
def test_lists_that_name_no_files(docs, argv, given, error):
    assert bad("tokenize", "--files-from", "-", *argv, stdin=given).error == error


@pytest.mark.parametrize(
    "argv", [["-i", "-"], ["TEXT"], ["--pairs", "docs/a.txt"], ["--pairs", "-"]]
)
def test_a_list_cannot_be_combined_with(docs, argv):
    done = bad("tokenize", "--files-from", "-", *argv, stdin="docs/a.txt", code=2)
    assert "--files-from" in done.error


def test_a_glob_that_the_shell_expanded(docs):
    done = bad("tokenize", "-i", "docs/a.txt", "docs/b.txt", code=2)
    assert done.error == "TEXT cannot be combined with --input or --files-from"
    assert done.hint.startswith("quote globs")


def test_errors_name_the_file(docs):
    (docs / "sub/c.jsonl").write_text("{\n")
    assert call("tokenize", "-q", "-i", "docs").error.startswith("docs/sub/c.jsonl:1: ")


def test_a_resumed_run_knows_the_files_of_a_folder(docs):
    """What was read is in the manifest, file by file, and a changed or new file is refused."""
    run = ("embed", "-m", TINY, "-i", "docs/sub", "-o", "v.npy", "-q")
    assert call(*run).code == 0
    made = json_in(docs.parent / "v.npy.manifest.json")
    names = [one["name"] for one in made["inputs"]]
    assert names == [os.path.join("docs/sub", name) for name in ("c.jsonl", "deep/d.csv", "e.md")]
    assert "already complete" in call(*run[:-1], "--resume").err
    (docs / "sub/new.txt").write_text("new\n")
    assert "input.paths was" in bad(*run, "--resume").error
    (docs / "sub/new.txt").unlink()
    (docs / "sub/c.jsonl").write_text('{"text": "C"}')
    assert "inputs.docs/sub/c.jsonl was " in bad(*run, "--resume").error


def test_questions_are_read_from_folders_and_lists(docs, models):
    run = ("answer", "-q", "-m", models("BertForQuestionAnswering"), "--question", "who?")
    assert len(good(*run, "-i", "docs/sub", "--context-field", "text").rows) == 3
    assert len(good(*run, "--files-from", "-", stdin="docs/a.txt\ndocs/b.txt\n").rows) == 2


def test_decode_reads_folders_and_lists(docs):
    (docs / "ids").mkdir()
    numpy.save(docs / "ids/a.npy", numpy.array([[101, 1045, 102]]))
    (docs / "ids/b.txt").write_text("101 2293 102\n")
    for argv in (["-i", "docs/ids"], ["-i", "docs/ids/*"]):
        assert good("decode", *argv).out == "[CLS] i [SEP]\n[CLS] love [SEP]\n"
    assert good("decode", "--files-from", "-", stdin="docs/ids/b.txt").out == "[CLS] love [SEP]\n"


@pytest.mark.skipif(os.name == "nt", reason="a shell")
def test_find_pipes_names_on(docs):
    names = b"".join(b"%s\0" % os.fsencode(path) for path in sorted(docs.glob("*.txt")))
    done = process("tokenize", "--count", "--files-from", "-", "-0", stdin=names, cwd=docs.parent)
    assert (done.code, done.out, done.err) == (0, "3\n3\n3\n", "")


@pytest.mark.parametrize(
    "argv",
    [
        ("tokenize",),
        ("tokenize", "--count", "-f", "jsonl"),
        ("chunk",),
        ("embed", "-q", "-m", TINY),
        ("embed", "-q", "-m", TINY, "-f", "csv"),
        ("embed", "-q", "-m", TINY, "-o", "v.parquet"),
        ("embed", "-q", "-m", TINY, "-o", "v.npy"),
        ("embed", "-q", "-m", TINY, "-o", "v.npz", "--update"),
        ("embed", "-q", "-m", TINY, "-o", "v.npy", "--token-vectors"),
        ("classify", "-q"),
        ("rerank", "-q", "a"),
    ],
)
def test_records_of_several_files_say_which(docs, argv, models):
    if argv[0] in ("classify", "rerank"):
        argv += (
            "-m",
            models("BertForSequenceClassification", num_labels=1 + (argv[0] == "classify")),
        )
    done = good(*argv, "-i", "docs/a.txt", "-i", "docs/sub")
    rows = done.rows if "csv" not in argv and done.out else []
    if "csv" in argv:
        rows = list(csv.DictReader(io.StringIO(done.out)))
    elif "v.parquet" in argv:
        rows = pyarrow.parquet.read_table("v.parquet").to_pylist()
    elif not done.out:
        index = docs.parent / f"{argv[argv.index('-o') + 1]}.index.jsonl"
        rows = list(map(json.loads, index.read_text().splitlines()))
    places = [("a.txt", "1"), ("sub/c.jsonl", "1"), ("sub/deep/d.csv", "2"), ("sub/e.md", "1")]
    seen = [(row["file"].replace(os.sep, "/"), str(row["line"])) for row in rows]
    assert sorted(seen) == [(f"docs/{name}", line) for name, line in places]
    one = good(
        *argv,
        "-i",
        "docs/a.txt",
        *(("--overwrite",) if "-o" in argv and "--update" not in argv else ()),
    )
    assert '"file"' not in one.out


def test_each_file_is_a_text(docs):
    (docs / "two.md").write_text("one\r\ntwo\n")
    (docs / "empty.rst").touch()
    rows = good("tokenize", "--text", "-i", "docs/two.md", "-i", "docs/empty.rst").rows
    assert [row["text"] for row in rows] == ["one\r\ntwo\n", ""]
    assert [row["id"] for row in rows] == ["docs/two.md", "docs/empty.rst"]
    (row,) = good("tokenize", "--text", "-i", "docs/b.txt", "--whole").rows
    assert (row["text"], row["id"]) == ("b\n", "docs/b.txt")
    assert bad("tokenize", "-i", "docs", "--whole", "--input-format", "csv", code=2).error
    (docs / "two.md").write_bytes(b"one\ntw\xe9\n")
    assert "docs/two.md:2: byte 6 (0xe9)" in bad("tokenize", "-i", "docs/two.md").error
    assert (
        "larger than 3 bytes" in bad("tokenize", "-i", "docs/two.md", "--max-record-bytes", 3).error
    )
    done = call(
        "tokenize", "--count", "-i", "docs/two.md", "-i", "docs/a.txt", "--on-error", "skip"
    )
    assert (done.code, done.out) == (1, "3\n")


def test_what_is_skipped_in_a_folder_is_named_or_counted_by_suffix(docs):
    done = call("tokenize", "--count", "-i", "docs")
    assert done.err == ("note: docs: skipped 2 files of unknown type: notes.doc, v.npy\n")
    for number in range(4):
        (docs / f"{number}.HTML").touch()
    (docs / "README").touch()
    done = call("tokenize", "--count", "-i", "docs")
    assert done.err.startswith("note: docs: skipped 7 files of unknown type: 4 .html, ")
    assert "1 no suffix" in done.err and "1 .doc" in done.err


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_links_and_special_files_of_a_folder_are_passed_over(docs):
    (docs / "gone.txt").symlink_to("nowhere")
    os.mkfifo(docs / "pipe.jsonl")
    note = "note: docs: skipped 2 broken links or special files\n"
    done = call("tokenize", "--text", "-i", "docs")
    assert "".join(row["text"].strip() for row in done.rows) == "abgcde"
    assert done.err.startswith(note)
    (docs / "only").mkdir()
    (docs / "only/x.txt").symlink_to("nowhere")
    done = call("tokenize", "-i", "docs/only")
    assert (done.code, done.err.splitlines()[0]) == (
        1,
        "note: docs/only: skipped 1 broken link or special file",
    )


ODD = ("tokenize -i", "embed -i", "chunk -i", "duplicates", "map", "similar hi --corpus")
ODD += ("tokenize --count --per-file -i", "tokenize --stats --per-file -i")


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
@pytest.mark.parametrize("command", ODD)
@pytest.mark.parametrize("output", ["", "-f csv", "-o o.csv", "-o o.parquet", "-o o.jsonl"])
def test_names_that_are_not_utf8_are_escaped_in_every_format(
    tmp_path, monkeypatch, command, output
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in (b"in/a\xff.txt", b"in/b.txt"):
        with open(name, "w") as file:
            file.write(f"I love NLP!\n{name}\n")
    if (command, output) == ("map", "-f csv"):
        output = "-o map.csv"
    if (command, output) == ("map", ""):
        output = "-f jsonl"
    done = call(*command.split(), "in", "-q", "-m", TINY, *output.split())
    if done.code == 2:  # a format that the command does not have
        assert "cannot write" in done.error
        return
    assert (done.code, done.err) == (0, "")
    if output == "-o o.parquet":
        read = pyarrow.parquet.read_table("o.parquet").to_pylist()
    elif output.startswith("-o"):
        read = (tmp_path / output.split()[1]).read_bytes().decode()
    else:
        read = done.out
    assert "a\\xff.txt" in str(read).replace("\\\\", "\\") or command == "duplicates"


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
@pytest.mark.parametrize("form", ["npy", "safetensors", "npz"])
def test_names_that_are_not_utf8_in_an_index_and_a_manifest(tmp_path, form):
    (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("a\n")
    (tmp_path / "b.txt").write_text("b\n")
    out = tmp_path / f"out/x.{form}"
    out.parent.mkdir()
    argv = ("embed", "-q", "-m", TINY, "-i", tmp_path, "-o", out)
    assert call(*argv).code == 0
    assert call(*argv, "--resume").code == 0
    manifest = (out.parent / f"{out.name}.manifest.json").read_bytes().decode()
    assert json.loads(manifest)["inputs"][0]["name"].endswith("a\\xff.txt")
    assert "\\ud" not in manifest


def endless_line(path, begin=b""):
    """Write a packed file of half a megabyte: one line of 400 MB."""
    with gzip.open(path, "wb") as file:
        file.write(begin)
        for _ in range(400):
            file.write(b"a" * (1 << 20))
    return path


def test_lists_of_files_and_judgements_are_never_read_whole(tmp_path):
    names = endless_line(tmp_path / "names.gz")
    assert peak("tokenize", "--files-from", names, code=1) < 100
    error = bad("tokenize", "--files-from", names).error
    assert error == f"{names}:1: the name of a file is larger than 32,768 bytes"
    qrels = endless_line(tmp_path / "qrels.gz", b"q0 0 d0 1\n")
    queries, corpus = tmp_path / "q.jsonl", tmp_path / "c.jsonl"
    queries.write_text('{"_id": "q0", "text": "cats"}\n')
    corpus.write_text('{"_id": "d0", "text": "a cat sleeps"}\n')
    argv = ("evaluate", "--queries", queries, "--corpus", corpus, "--qrels", qrels)
    assert peak(*argv, code=1) < 100
    assert bad(*argv).error == f"{qrels}:2: the line is larger than 65,536 bytes"
