"""`duplicates --against`: the texts of a file that other files have, as brute force finds them."""

import csv
import json

import numpy as np
import pytest
from front import TINY, bad, call, good, jsonl, rows_in
from terminal import at_terminal

import bertcli
from bertcli.errors import UsageError
from bertcli.retrieval import duplicates as grouping
from bertcli.retrieval.duplicates import Matches

ARGV = ("duplicates", "-m", TINY, "-q", "--threshold", 0.9999)


def cosines(new, known):
    """Return the cosines of all pairs, to 9 decimals."""
    wide = [vectors.astype(float) for vectors in (new, known)]
    lengths = [np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in wide]
    a, b = (x / np.maximum(y, 1e-9) for x, y in zip(wide, lengths, strict=True))
    return (a @ b.T).round(9)


def brute_force(known, new, threshold):
    """Return known row -> the new rows that are most similar to it; equal vectors come first."""
    scores = cosines(new, known)
    groups = {}
    for row, line in enumerate(scores):
        equal = np.flatnonzero((known == new[row]).all(axis=1) & new[row].any())
        best = int(equal[0]) if len(equal) else int(line.argmax()) if len(line) else None
        if best is not None and line[best] >= threshold:
            groups.setdefault(best, []).append(row)
    return dict(sorted(groups.items()))


def found(known, new, threshold):
    run = Matches(np.concatenate([known, new]), threshold, len(known))
    assert max(run, default=0) <= len(new)
    groups = {int(group[0]): [*map(int, group[1:] - len(known))] for group in run.groups()}
    return dict(sorted(groups.items()))


def unit(vectors):
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


def made(rows, width, seed):
    return unit(np.random.default_rng(seed).normal(size=(rows, width)))


@pytest.mark.parametrize("width", [4, 150])
@pytest.mark.parametrize("threshold", [0.3, 0.9, 0.98, 1.0])
@pytest.mark.parametrize("blocks", [(8192, 2048), (96, 32)])
def test_groups_are_those_of_all_pairs(monkeypatch, width, threshold, blocks):
    monkeypatch.setattr(grouping, "ROWS_PER_BLOCK", blocks[0])
    monkeypatch.setattr(grouping, "ROWS_PER_STRIP", blocks[1])
    draw = np.random.default_rng(0)
    known, new = made(300, width, 1), made(250, width, 2)
    known[250:270] = known[:20]  # copies within the other corpus
    new[:40] = known[200:240]  # copies, some of copies
    new[40:60] = known[5:25]
    new[60:100] = unit(known[100:140] + 0.2 / width**0.5 * draw.normal(size=(40, width)))
    new[100:110] = new[110:120]  # copies within the corpus
    new[120] = known[7] = 0  # no duplicates of each other
    assert found(known, new, threshold) == brute_force(known, new, threshold)
    assert found(known[:0], new, threshold) == found(known, new[:0], threshold) == {}


@pytest.mark.parametrize("spread", [1e-4, 0.01, 0.03])
def test_texts_that_are_all_alike_and_pairs_at_the_threshold(spread):
    draw = np.random.default_rng(1)
    near = made(1, 200, 0) + spread * draw.normal(size=(300, 200))
    known, new = unit(near[:160]), unit(near[160:])
    scores = np.sort(cosines(new, known).reshape(-1))
    for threshold in (0.9, float(scores[len(scores) // 2]), float(scores[-1])):
        assert found(known, new, threshold) == brute_force(known, new, threshold)


# --- the command ---

TRAIN = ["Stocks fell", "The cat sat.", "", "Dogs bark", "dogs bark", "STOCKS FELL"]
TEST = ["a new text", "THE CAT SAT.", "Dogs bark", "another one", "another one", ""]


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "test.txt", tmp_path / "train.txt"
    for path, texts in zip(paths, (TEST, TRAIN), strict=True):
        path.write_text("".join(f"{text}\n" for text in texts))
    return paths


def test_groups_name_the_line_of_the_other_file(files):
    test, train = files
    assert good(*ARGV, test, "--against", train).rows == [
        {"against": row, "rows": [at], "scores": [1.0]}
        | {"against_file": str(train), "against_line": row + 1}
        for row, at in ((1, 1), (2, 5), (3, 2))
    ]
    done = call("duplicates", "-m", TINY, test, "--against", train, "--threshold", 0.9999)
    assert done.err == f"note: 3 of 6 texts are in {train}, 2 of them exactly\n"
    texts = good(*ARGV, test, "--against", train, "-f", "txt").out.splitlines()
    assert texts == ["a new text", "another one", "another one"]  # its own duplicates stay
    train.write_text("nothing of it\n")
    done = call("duplicates", "-m", TINY, test, "--against", train, "--threshold", 0.9999)
    assert (done.out, done.err) == ("", f"note: 0 of 6 texts are in {train}\n")


def test_near_duplicates_are_those_of_the_stored_vectors(files, tmp_path):
    test, train = files
    for path in files:
        good("embed", "-q", "-m", TINY, "-i", path, "-o", path.with_suffix(".npy"))
    known, new = (unit(np.load(path.with_suffix(".npy"))) for path in (train, test))
    for threshold in (0.5, 0.8, 0.95):
        argv = (*ARGV[:-1], threshold, test, "--against", train, "--vectors", tmp_path / "test.npy")
        groups = {group["against"]: group["rows"] for group in good(*argv).rows}
        assert groups == brute_force(known, new, threshold)


def test_the_output_has_the_other_texts_with_all_columns(tmp_path):
    test = [{"no": at, "title": text} for at, text in enumerate(TEST)]
    (tmp_path / "test.jsonl").write_text(jsonl(test))
    (tmp_path / "train.csv").write_text("title,key\n" + "".join(f'"{t}",k{t}\n' for t in TRAIN))
    out = tmp_path / "clean.jsonl"
    argv = (*ARGV, tmp_path / "test.jsonl", "--against", tmp_path / "train.csv")
    argv = (*argv, "--text-field", "title")
    groups = good(*argv, "-o", out, "--groups", tmp_path / "groups.csv").out
    assert groups == ""
    assert [row["no"] for row in rows_in(out)] == [0, 3, 4]
    with (tmp_path / "groups.csv").open(newline="") as stream:
        rows = [*csv.DictReader(stream)]
    assert [(row["against_line"], row["against_text"], row["text"]) for row in rows] == [
        ("3", "The cat sat.", "THE CAT SAT."),
        ("4", "", ""),
        ("5", "Dogs bark", "Dogs bark"),
    ]
    good(*argv, "-o", tmp_path / "again.jsonl", "--resume")
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()
    (tmp_path / "train.csv").write_text("title,key\nnothing,k\n")
    refused = bad(*argv, "-o", tmp_path / "again.jsonl", "--resume")
    assert "again.jsonl" in refused.error
    assert "title" in bad(*ARGV, tmp_path / "test.jsonl", "--against", tmp_path / "train.csv").err


def test_several_files_and_ids(tmp_path, files):
    test, train = files
    rows = [{"id": f"t{at}", "text": text} for at, text in enumerate(TRAIN)]
    (other := tmp_path / "more.jsonl").write_text(jsonl([*rows, {"id": "x", "text": "A NEW text"}]))
    groups = good(*ARGV, test, "--against", train, "--against", other).rows
    assert [group["against_file"] for group in groups] == [*[str(train)] * 3, str(other)]
    assert groups[-1]["against_line"] == 7 and groups[-1]["rows"] == [0]
    assert [group["against_id"] for group in good(*ARGV, test, "--against", other).rows] == [
        *("t1", "t2", "t3", "x")
    ]


def test_what_is_left_out_of_both_files_is_counted(files):
    test, train = files
    done = call("duplicates", "-m", TINY, test, "--against", train, "--skip-empty", "-f", "txt")
    assert done.code == 0 and done.err.count("1 empty text left out") == 2


def test_what_is_refused(tmp_path, files):
    test, train = files
    argv = (*ARGV, test, "--against")
    assert "is compared with itself" in bad(*argv, test, code=2).error
    for options in (("--chain",), ("--keep", "longest")):
        assert "--against cannot be combined" in bad(*argv, train, *options, code=2).error
    assert "no.txt" in bad(*argv, tmp_path / "no.txt").error
    refused = bad(*argv, train, "-o", train, "--overwrite")
    assert "the input" in refused.error
    assert train.read_text().startswith("Stocks")
    assert "cannot be read twice" in bad(*argv, "-", stdin="a\n", code=2).error
    np.save(tmp_path / "v.npy", np.ones((len(TEST), 5)))
    assert "5 dimensions" in bad(*argv, train, "--vectors", tmp_path / "v.npy").err


def test_a_terminal_shows_both_texts(files):
    test, train = files
    code, screen = at_terminal(*ARGV, test, "--against", train, columns=200)
    text = " ".join(screen.decode().split())
    assert code == 0 and f"against 1 {train}:2 The cat sat. 1.0000 1 1 THE CAT SAT." in text


def test_python_has_the_same_groups(files):
    test, train = files
    options = {"model": TINY, "threshold": 0.9999, "quiet": True}
    assert bertcli.duplicates(test, train, **options) == good(*ARGV, test, "--against", train).rows
    groups = bertcli.duplicates(TEST, against=TRAIN, **options)
    assert json.loads(json.dumps(groups)) == [
        {"against": row, "rows": [at], "scores": [1.0]} for row, at in ((1, 1), (2, 5), (3, 2))
    ]
    with pytest.raises(UsageError, match="against cannot be combined with chain"):
        bertcli.duplicates(test, train, chain=True, **options)
