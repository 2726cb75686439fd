"""Near-duplicates: what is kept of a corpus, as comparing pair by pair decides it."""

import csv
import datetime
import decimal
import gzip
import io
import json
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from front import (
    TINY,
    bad,
    call,
    good,
    jsonl,
)

from bertcli.io.output_files import OutputFiles
from bertcli.retrieval import duplicates as grouping
from bertcli.retrieval.duplicates import Components, Selection

TEXTS = [
    "The cat sat.",
    "Stocks fell",
    "the cat sat.",
    "",
    "Dogs bark",
    "THE CAT SAT.",
    "stocks fell",
]


def all_alike(vectors, threshold):
    """Return which rows are alike, [n, n]."""
    wide = vectors.astype(float)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    wide = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return (wide @ wide.T).round(9) >= threshold


def components(vectors, threshold):
    """Return the connected components of two or more rows."""
    alike = all_alike(vectors, threshold)
    groups, seen = [], set()
    for first in range(len(vectors)):
        group, left = {first}, [first]
        while left and first not in seen:
            further = {*np.flatnonzero(alike[left.pop()]).tolist()} - group
            group |= further
            left += further
        if len(group) > 1:
            groups.append(sorted(group))
        seen |= group
    return groups


def selection(vectors, threshold, order):
    """Return the groups of rows that are kept one after another: each with those it removes."""
    alike = all_alike(vectors, threshold)
    groups = {}
    for row in order:
        keep = next((kept for kept in groups if alike[kept, row]), row)
        groups.setdefault(keep, []).append(row)
    return {keep: {*rows} for keep, rows in groups.items() if len(rows) > 1}


def found(vectors, threshold):
    run = Components(vectors, threshold)
    assert max(run, default=0) <= len(vectors)
    return [group.tolist() for group in run.groups()]


def selected(vectors, threshold, order):
    run = Selection(vectors, threshold, np.array(order))
    assert max(run, default=0) == len(vectors)
    return {group[0]: {*group} for group in map(np.ndarray.tolist, run.groups())}


def made(rows, width, seed=0):
    """Vectors of length 1: most of them alone, some copied, some changed a little, some zeros."""
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(rows, width))
    part = rows // 8
    vectors[3 * part : 4 * part] = vectors[:part]
    vectors[4 * part : 5 * part] = vectors[:part] + 0.2 * draw.normal(size=(part, width))
    vectors[5 * part] = vectors[5 * part + 2] = 0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


@pytest.mark.parametrize("width", [4, 150, 384])
@pytest.mark.parametrize("threshold", [0.3, 0.9, 0.98, 1.0])
@pytest.mark.parametrize("blocks", [(8192, 2048), (96, 32)])
def test_groups_are_those_of_all_pairs(monkeypatch, width, threshold, blocks):
    monkeypatch.setattr(grouping, "ROWS_PER_BLOCK", blocks[0])
    monkeypatch.setattr(grouping, "ROWS_PER_STRIP", blocks[1])
    vectors = made(400, width)
    assert found(vectors, threshold) == components(vectors, threshold)
    for order in (range(400), np.random.default_rng(2).permutation(400).tolist()):
        assert selected(vectors, threshold, order) == selection(vectors, threshold, order)


@pytest.mark.parametrize("spread", [0, 1e-4, 0.01, 0.03])
def test_texts_that_are_all_alike_and_pairs_at_the_threshold(spread):
    draw = np.random.default_rng(1)
    vectors = np.repeat(made(9, 200)[:1], 300, axis=0) + spread * draw.normal(size=(300, 200))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    scores = np.sort((vectors.astype(float) @ vectors.T.astype(float)).reshape(-1))
    for threshold in (0.9, float(scores[len(scores) // 2].round(9)), 1.0):
        assert found(vectors, threshold) == components(vectors, threshold)
        order = range(len(vectors))
        assert selected(vectors, threshold, order) == selection(vectors, threshold, order)


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "c.txt"
    path.write_text("".join(text + "\n" for text in TEXTS))
    return path


ARGV = ("duplicates", "-m", TINY, "-q", "--threshold", 0.9999)


def test_groups_and_what_is_kept(corpus):
    assert good(*ARGV, corpus).rows == [
        {"keep": 0, "rows": [2, 5], "scores": [1.0, 1.0]},
        {"keep": 1, "rows": [6], "scores": [1.0]},
    ]
    corpus.write_text("the cat sat.\nx\nThe   cat sat.\nTHE  CAT sat.\n")
    (group,) = good(*ARGV, corpus, "--keep", "longest").rows
    assert group == {"keep": 2, "rows": [0, 3], "scores": [1.0, 1.0]}
    done = call("duplicates", "-m", TINY, corpus, "--threshold", 0.9999)
    assert done.err == "note: 1 group: 2 duplicates among 4 texts\n"


def test_scores_are_the_cosines_to_what_is_kept(corpus):
    vectors = corpus.with_name("v.npy")
    (group,) = good(*ARGV[:-1], 0.1, corpus, "--vectors", vectors).rows
    wide = np.load(vectors).astype(float)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    assert group["rows"] == [1, 2, 3, 4, 5, 6]
    assert group["scores"] == pytest.approx((wide @ wide[0])[1:].tolist(), abs=1e-8)


def test_the_texts_without_duplicates(corpus, tmp_path):
    assert good(*ARGV, corpus, "-f", "txt").out.splitlines() == [*TEXTS[:2], "", "Dogs bark"]
    out = tmp_path / "fewer.txt"
    good(*ARGV, corpus, "-o", out)
    assert out.read_text().splitlines() == [*TEXTS[:2], "", "Dogs bark"]
    assert good(*ARGV, out).rows == []
    refused = bad(*ARGV, corpus, "-f", "txt", "-o", corpus, "--overwrite")
    assert str(corpus) in refused.error


def unit_of(path):
    wide = np.load(path).astype(float)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


@pytest.mark.parametrize("keep", ["first", "longest"])
def test_every_text_that_is_removed_is_close_to_the_one_that_is_kept(tmp_path, keep):
    """Also where each text is close to the next, and the last far from the first."""
    (texts := tmp_path / "t.txt").write_text(
        "".join(f"{'x' * (row % 7)} {row}\n" for row in range(90))
    )
    angles = np.repeat(np.arange(30) * 0.3, 3) + np.random.default_rng(0).normal(0, 0.05, 90)
    np.save(vectors := tmp_path / "v.npy", np.stack([np.cos(angles), np.sin(angles)], 1))
    argv = ("duplicates", "-m", TINY, "-q", texts, "--threshold", 0.9, "--keep", keep)
    groups = good(*argv, "--vectors", vectors, "-o", out := tmp_path / "o.txt").rows
    wide = unit_of(vectors)
    removed = {row for group in groups for row in group["rows"]}
    for group in groups:
        assert (wide[group["rows"]] @ wide[group["keep"]] >= 0.9).all()
        assert min(group["scores"]) >= 0.9
    kept = [row for row in range(90) if row not in removed]
    alike = wide[kept] @ wide[kept].T >= 0.9
    assert alike.sum() == len(kept)  # no two that are kept are duplicates
    assert out.read_text().splitlines() == [texts.read_text().splitlines()[row] for row in kept]
    (chain,) = good(*argv, "--vectors", vectors, "--chain").rows
    assert (len(chain["rows"]), min(chain["scores"]) < 0) == (89, True)


ROWS = [
    {"no": 1, "text": "The cat sat.", "key": "a", "note": 'x, "y"', "deep": [1, 2]},
    {"no": 2, "text": "Stocks fell", "key": "b", "note": "", "deep": []},
    {"no": 3, "text": "the cat sat.", "key": "c", "note": "two\nlines", "deep": [3]},
    {"no": 4, "text": "Dogs bark", "key": "d", "note": "ü", "deep": [4]},
]
GROUP = {"keep": 0, "rows": [2], "scores": [1.0]}


def written(path, rows):
    """Write rows as the suffix says."""
    rows = [dict(row) for row in rows]
    match path.suffixes[0]:
        case ".jsonl":
            data = jsonl(rows)
        case ".json":
            data = json.dumps(rows, indent=1)
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
            return path
        case ".csv" | ".tsv":
            for row in rows:
                row["deep"] = json.dumps(row["deep"])
                row["note"] = (
                    row["note"].replace("\n", " ") if path.suffix == ".tsv" else row["note"]
                )
            stream = io.StringIO(newline="")
            style = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
            writer = csv.DictWriter(stream, rows[0], **(style if path.suffix == ".tsv" else {}))
            writer.writeheader()
            writer.writerows(rows)
            data = stream.getvalue()
        case _:
            data = "".join(f"{row['text']}\n" for row in rows)
    path.write_bytes(gzip.compress(data.encode()) if path.suffix == ".gz" else data.encode())
    return path


def read_back(path):
    """Return the rows of a file; those of tables of text with text alone."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    match path.suffixes[0]:
        case ".parquet":
            return pyarrow.parquet.read_table(path).to_pylist()
        case ".jsonl" | ".json":
            text = raw.decode()
            return json.loads(text) if text[:1] == "[" else [*map(json.loads, text.splitlines())]
        case ".csv":
            return [*csv.DictReader(io.StringIO(raw.decode(), newline=""))]
        case ".tsv":
            return [
                *csv.DictReader(io.StringIO(raw.decode()), delimiter="\t", quoting=csv.QUOTE_NONE)
            ]
    return raw.decode().splitlines()


COPIES = """
a.txt b.txt, a.csv b.csv, a.tsv b.tsv, a.jsonl b.jsonl, a.json b.json, a.parquet b.parquet,
a.jsonl.gz b.jsonl.gz, a.csv b.jsonl, a.jsonl b.csv, a.jsonl b.parquet, a.parquet b.jsonl,
a.csv b.txt, a.json b.parquet
"""


@pytest.mark.parametrize("names", COPIES.split(","))
def test_the_output_is_the_input_without_duplicates_with_all_columns(tmp_path, names):
    source, out = (tmp_path / name for name in names.split())
    written(source, ROWS)
    argv = (*ARGV, source, "-o", out)
    assert good(*argv).rows == [GROUP]
    before, after = read_back(source), read_back(out)
    if out.suffix == ".txt":
        assert after == ["The cat sat.", "Stocks fell", "Dogs bark"]
    elif source.suffixes[0] == out.suffixes[0] or {".csv", ".tsv"}.isdisjoint(
        {source.suffixes[0], out.suffixes[0]}
    ):
        assert after == [before[0], before[1], before[3]]
    else:
        assert [row["key"] for row in after] == ["a", "b", "d"]
        assert [*after[0]] == [*ROWS[0]]
    assert good(*argv[:-1], tmp_path / f"again{''.join(out.suffixes)}", "--resume").rows == [GROUP]
    assert good(*ARGV, out).rows == []
    assert "already exists" in bad(*argv).error
    assert good(*argv, "--overwrite").rows == [GROUP]


def test_parquet_keeps_types_that_json_does_not_have(tmp_path):
    day = datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)
    table = pyarrow.table(
        {
            "text": ["A b.", "a b.", "Dogs bark"],
            "when": pyarrow.array([day] * 3, pyarrow.timestamp("ns", "UTC")),
            "price": pyarrow.array([decimal.Decimal("1.20")] * 3, pyarrow.decimal128(9, 2)),
            "small": pyarrow.array([1, None, 3], pyarrow.int8()),
            "kind": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
            "raw": [b"\xff", None, b""],
        }
    ).replace_schema_metadata({"made": "by us"})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    good(*ARGV, tmp_path / "a.parquet", "-o", tmp_path / "b.parquet")
    after = pyarrow.parquet.read_table(tmp_path / "b.parquet")
    assert after.equals(table.filter([True, False, True]), check_metadata=True)
    wider = table.append_column("more", pyarrow.array([1, 2, 3])).slice(2)
    pyarrow.parquet.write_table(wider, tmp_path / "c.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "c.parquet"]
    good(*ARGV, *paths, "-o", tmp_path / "d.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "d.parquet")["more"].to_pylist() == [None, None]
    other = table.set_column(3, "small", pyarrow.array(["a", "b", "c"]))
    pyarrow.parquet.write_table(other, tmp_path / "c.parquet")
    assert "different types" in bad(*ARGV, *paths, "-o", tmp_path / "e.parquet").error
    assert not (tmp_path / "e.parquet").exists()


def test_several_files_ids_and_empty_texts(tmp_path):
    first = written(tmp_path / "a.jsonl", ROWS[:2])
    second = written(tmp_path / "b.csv", [{**row, "text": row["text"].upper()} for row in ROWS])
    out = tmp_path / "o.jsonl"
    good(*ARGV, first, second, "-o", out, "--id-field", "key")
    assert [row["no"] for row in read_back(out)] == [1, 2, "4"]
    assert [*read_back(out)[2]] == [*ROWS[0]]
    empty = written(tmp_path / "e.jsonl", [ROWS[0], {**ROWS[1], "text": " "}, ROWS[3]])
    done = call("duplicates", "-m", TINY, empty, "-o", tmp_path / "p.jsonl", "--skip-empty")
    assert (done.code, "1 empty text left out" in done.err) == (0, True)
    assert [row["no"] for row in read_back(tmp_path / "p.jsonl")] == [1, 4]
    (tmp_path / "n.csv").write_text("text,more\n")
    call(*ARGV, tmp_path / "n.csv", "-o", tmp_path / "m.csv")
    assert (tmp_path / "m.csv").read_text() == "text,more\n"
    (tmp_path / "notes").mkdir()
    for name, text in (("x.md", "# One\n"), ("y.md", "# one\n"), ("z.md", "two\n")):
        (tmp_path / "notes" / name).write_text(text)
    good(*ARGV, tmp_path / "notes", "-o", tmp_path / "notes.jsonl")
    assert [row["text"] for row in read_back(tmp_path / "notes.jsonl")] == ["# One\n", "two\n"]


def test_groups_have_a_file_of_their_own(tmp_path):
    source = written(tmp_path / "a.csv", ROWS)
    out, groups = tmp_path / "b.csv", tmp_path / "g.jsonl"
    argv = (*ARGV, source, "-o", out, "--groups", groups)
    assert good(*argv).out == ""
    assert (read_back(groups), len(read_back(out))) == ([GROUP], 3)
    assert f"{groups}: already exists" in bad(*argv[:-4], "--groups", groups).error
    good(*argv, "--overwrite")
    assert good(*ARGV, source, "--groups", tmp_path / "g.csv").out == ""
    assert read_back(tmp_path / "g.csv")[0]["text"] == "the cat sat."
    assert good(*ARGV, source, "-f", "txt", "--groups", tmp_path / "h.parquet").out.count("\n") == 3
    assert "cannot write txt" in bad(*ARGV, source, "--groups", "g.txt", code=2).error
    assert "are the same file" in bad(*ARGV, source, "-o", out, "--groups", out, code=2).error
    refused = bad(*ARGV, source, "-o", "x.csv", "--groups", source, "--overwrite")
    assert "the input" in refused.error


def test_a_run_that_is_resumed_finds_its_groups_as_they_are(tmp_path):
    source = written(tmp_path / "a.csv", ROWS)
    out, groups = tmp_path / "b.csv", tmp_path / "g.jsonl"
    argv = (*ARGV, source, "-o", out, "--groups", groups, "--resume")
    good(*argv)
    assert good(*argv).out == ""  # complete
    for path in (out, tmp_path / "b.csv.manifest.json"):
        path.unlink()
    good(*argv)
    assert (read_back(groups), len(read_back(out))) == ([GROUP], 3)
    for path in (out, tmp_path / "b.csv.manifest.json"):
        path.unlink()
    groups.write_text("mine\n")
    assert "already exists, with other content" in bad(*argv).error
    assert (groups.read_text(), out.exists()) == ("mine\n", False)


@pytest.mark.parametrize("option", ["", "--overwrite", "--resume"])
def test_an_interrupt_between_the_outputs_says_how_to_continue(tmp_path, option):
    """The groups are published first; the second output is interrupted while it is finished."""
    source = written(tmp_path / "a.csv", ROWS)
    out = tmp_path / "b.csv"
    groups = tmp_path / "g.jsonl"
    argv = ("duplicates", source, "-o", out, "--groups", groups, *option.split())
    publish = OutputFiles.publish

    def publish_groups_only(files, **settings):
        if files.path != groups:
            raise KeyboardInterrupt
        publish(files, **settings)

    with mock.patch.object(OutputFiles, "publish", publish_groups_only):
        done = call(*argv)
    assert (done.code, groups.exists(), out.exists()) == (130, True, False)
    note = f"note: {groups} was written, {out} was not: run the command again"
    assert done.err.splitlines()[-1] == note + ("" if option else " with --resume")
    assert call(*argv, *([] if option else ["--resume"])).code == 0
    assert (read_back(groups), len(read_back(out))) == ([GROUP], 3)


def test_ids_fields_and_tables(tmp_path):
    path = tmp_path / "c.jsonl"
    lines = [{"id": f"n{at}", "body": text} for at, text in enumerate(TEXTS)]
    path.write_text(jsonl(lines))
    argv = (*ARGV, path, "--text-field", "body")
    assert good(*argv).rows[0] == {
        **{"keep": 0, "rows": [2, 5], "scores": [1.0, 1.0]},
        **{"keep_id": "n0", "ids": ["n2", "n5"]},
    }
    table = good(*argv, "-f", "csv").out.splitlines()
    assert table[:2] == ["keep,keep_id,row,id,score,text", "0,n0,2,n2,1.0,the cat sat."]
    shown = good(*argv, "-f", "table").out
    assert "kept" in shown and "n5" in shown and "Dogs" not in shown
    assert good(*argv[:-2], "--id-field", "id", "--text-field", "id", "-f", "csv").out == (
        "keep,keep_id,row,id,score,text\n"
    )


def test_vectors_are_kept_reused_and_checked(corpus):
    vectors = corpus.with_name("v.npy")
    expected = good(*ARGV, corpus).out
    argv = ("duplicates", "-m", TINY, "--threshold", 0.9999, corpus, "--vectors", vectors)
    done = call(*argv)
    assert (done.out, "kept in" in done.err) == (expected, True)
    again = call(*argv)
    assert (again.out, "kept in" in again.err) == (expected, False)
    assert good("similar", "x", "-m", TINY, "-q", "--vectors", vectors).rows
    assert "made by another model" in bad(*ARGV[:1], corpus, "--vectors", vectors).error
    corpus.write_text("one\n")
    assert "the corpus has 1 text" in bad(*argv).error


def test_vectors_of_another_shape(tmp_path):
    (texts := tmp_path / "t.txt").write_text("a\nb\n")
    for shape, code in (((2, 3, 32), 1), ((2, 16), 0)):  # another model may have made the second
        np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=shape))
        done = call(*ARGV, texts, "--vectors", tmp_path / "v.npy")
        assert (done.code, "has 3 x 32 dimensions" in done.err) == (code, code == 1)


def test_no_texts_and_wrong_usage(tmp_path):
    (tmp_path / "none.txt").touch()
    done = call("duplicates", "-m", TINY, tmp_path / "none.txt")
    assert (done.code, done.out, done.err) == (0, "", "note: no records: the input is empty\n")
    for score in (0, 1.5):
        failed = bad(*ARGV[:-1], score, "x", code=2)
        assert "--threshold" in failed.error and failed.hint == "give 0.01 to 1"
    assert "stdin: cannot be read twice" in bad(*ARGV, "-", code=2).error
    assert "file not found" in bad(*ARGV, "nowhere.txt").error


def test_vectors_that_were_changed_are_refused(tmp_path):
    (texts := tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    good("embed", "-q", "-m", TINY, "-i", texts, "-o", vectors := tmp_path / "v.npy")
    for argv in (("duplicates", texts), ("similar", "a", "--corpus", texts), ("similar", "a")):
        good(*argv, "-q", "-m", TINY, "--vectors", vectors)
    flipped = bytearray(vectors.read_bytes())
    flipped[-1] ^= 1
    vectors.write_bytes(flipped)
    for argv in (("duplicates", texts), ("similar", "a", "--corpus", texts), ("similar", "a")):
        done = bad(*argv, "-q", "-m", TINY, "--vectors", vectors)
        assert done.error.startswith(f"{vectors}: was changed after it was made: its sha256")
