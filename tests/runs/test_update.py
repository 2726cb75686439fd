"""`embed --update`: only changes are embedded, and the bytes are those of a run from nothing."""

from random import Random

import numpy as np
import pytest
from front import (
    TINY,
    bad,
    call,
    contents,
    good,
    jsonl,
    left_in,
    struck,
)
from static_folders import model2vec_folder

pytestmark = pytest.mark.usefixtures("usual_engine")

OLD = ["one", "two", "The cat sat.", "", "one", "three " * 9]
NEW = ["", "four", "one", "The cat sat.", "five " * 200, "four", "one"]
SET = ("embed", "-q", "-m", TINY, "--device", "cpu", "--threads", 1)
FORMS = ["npy", "npz", "safetensors", "jsonl", "csv", "parquet"]


def put(path, texts, **more):
    lines = [{"id": f"n{len(text)}", "text": text, **more} for text in texts]
    path.write_text(jsonl(lines))
    return path


@pytest.fixture
def folders(tmp_path):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
    return tmp_path / "old", tmp_path / "new"


@pytest.mark.parametrize(
    ("form", "more"),
    [
        *((form, ()) for form in FORMS),
        *((form, ("--precision", "float16")) for form in ("npy", "parquet")),
        *((form, ("--precision", "binary")) for form in ("safetensors", "csv")),
    ],
)
def test_the_bytes_are_those_of_a_run_from_nothing(tmp_path, folders, ran, form, more):
    texts, (old, new) = tmp_path / "in.jsonl", folders
    argv = (*SET, "--update", "-i", texts, *more, "-o")
    put(texts, OLD)
    good(*argv, old / f"v.{form}")
    put(texts, NEW)
    good(*argv, new / f"v.{form}")
    ran.clear()
    good(*argv, old / f"v.{form}")
    assert sum(ran) == 3  # "four" twice, and "five"
    assert contents(old) == contents(new)
    assert left_in(old) == [f"v.{form}", f"v.{form}.index.jsonl", f"v.{form}.manifest.json"]
    good(*SET, "-i", texts, *more, "-o", tmp_path / f"plain.{form}")
    assert (tmp_path / f"plain.{form}").read_bytes() == (old / f"v.{form}").read_bytes()


def test_many_windows_pairs_and_long_texts(tmp_path, folders, ran):
    """Texts in several windows, and pairs, which are texts of their own."""
    texts, (old, new) = tmp_path / "in.jsonl", folders
    more = ("--window", 3, "--on-truncate", "window", "--max-length", 8, "--no-normalize")
    argv = (*SET, "--update", "-i", texts, *more, "-o")
    put(texts, [*OLD, *NEW])
    good(*argv, old / "v.npy")
    put(texts, [*NEW, "six", *OLD])
    ran.clear()
    good(*argv, old / "v.npy")
    assert sum(ran) == 1
    good(*argv, new / "v.npy")
    assert contents(old) == contents(new)
    put(texts, ["one", "six"], pair="two")
    ran.clear()
    good(*argv, old / "v.npy")
    assert sum(ran) >= 2


def test_characters_that_model2vec_does_not_read_are_counted(tmp_path, folders):
    """They count as dropped tokens in an update as in a run from nothing."""
    texts, (old, new) = tmp_path / "in.jsonl", folders
    model = model2vec_folder(tmp_path / "m", "bert", config={"normalize": True})
    argv = ("embed", "-m", model, "--max-length", 4, "--update", "-i", texts, "-o")
    put(texts, OLD)
    call(*argv, old / "v.jsonl")
    put(texts, NEW)
    updated = call(*argv, old / "v.jsonl").err
    fresh = call(*argv, new / "v.jsonl").err
    warnings = [line for line in fresh.splitlines() if "truncated to 4 tokens" in line]
    assert warnings and warnings[0] in updated
    assert contents(old) == contents(new)


def test_other_ways_to_make_vectors_take_nothing_over(tmp_path, ran):
    texts, out = put(tmp_path / "in.jsonl", OLD), tmp_path / "v.npy"
    good(*SET, "--update", "-i", texts, "-o", out)
    differences = {
        ("--pooling", "cls"): "options",
        ("--prompt", "a "): "options",
        ("--precision", "float16"): "options, precision",
    }
    for more, different in differences.items():
        ran.clear()
        done = call("embed", *SET[2:], "--update", "-i", texts, "-o", out, *more)
        assert sum(ran) == len(OLD)
        why = f"{out} was made with other {different}"
        assert f"note: 0 of 6 vectors reused: {why}\n" in done.err
    ran.clear()
    done = call("embed", *SET[2:], "--update", "-i", texts, "-o", out, *more)
    assert (ran, "already complete" in done.err) == ([], True)


def test_an_output_made_without_digests_gets_them(tmp_path, ran):
    texts, out = put(tmp_path / "in.jsonl", OLD), tmp_path / "v.npy"
    good(*SET, "-i", texts, "-o", out)
    whole = out.read_bytes()
    done = call("embed", *SET[2:], "--update", "-i", texts, "-o", out)
    assert f"0 of 6 vectors reused: {out} was made without --update\n" in done.err
    assert out.read_bytes() == whole
    put(texts, OLD[::-1])
    ran.clear()
    done = call("embed", *SET[2:], "--update", "-i", texts, "-o", out)
    assert (ran, "note: 6 of 6 vectors reused\n" in done.err) == ([], True)
    good("similar", "-m", TINY, "-q", "one", "--corpus", texts, "--vectors", out)
    (answer,) = good("similar", "-m", TINY, "-q", "one", "--vectors", out, "-k", 1).rows
    assert answer["hits"][0]["id"] == "n3"


def test_a_continued_update_says_what_the_interrupted_one_had_done(tmp_path):
    texts, out = tmp_path / "in.txt", tmp_path / "v.npy"
    texts.write_text("".join(f"text {number}\n" for number in range(40)))
    argv = ("embed", "-m", TINY, "-i", texts, "-o", out, "--update", "--window", 8)
    assert struck("SIGINT", *argv, journals=2) == 130
    done = call(*argv)
    assert "note: 0 of 40 vectors reused, 16 kept from the interrupted update\n" in done.err
    assert np.load(out).shape == (40, 32)


def test_texts_from_a_pipe_and_no_texts(tmp_path, ran):
    argv = (*SET, "--update", "-o", tmp_path / "v.npy")
    good(*argv, stdin="one\ntwo\n")
    ran.clear()
    good(*argv, stdin="two\nthree\n")
    assert sum(ran) == 1
    assert call(*argv, stdin="").code == 0
    assert np.load(tmp_path / "v.npy").shape == (0, 32)
    good(*argv, stdin="two\n")


def test_what_is_there_is_not_lost(tmp_path):
    texts, out = put(tmp_path / "in.jsonl", OLD), tmp_path / "v.jsonl"
    argv = (*SET, "--update", "-i", texts, "-o", out)
    out.write_text("precious\n")
    assert "already exists, but has no manifest" in bad(*argv).error
    out.unlink()
    good(*argv)
    put(texts, NEW)
    out.write_text(out.read_text() + "\n")
    assert "was changed after it was made" in bad(*argv).error
    assert out.read_text().endswith("\n\n")


SENTENCES = ["The cat sat.", "Paris is quick.", "NLP?", "A fox, a dog and a cat.", "One two three."]


def edited(random, documents):
    """Return documents after an edit: one added, changed, removed, or all in another order."""
    documents = list(documents)
    document = " ".join(random.choices(SENTENCES, k=random.randrange(9)))
    place = random.randrange(len(documents) + 1)
    match random.choice(["add", "change", "remove", "shuffle"]):
        case "change" if documents:
            words = documents.pop(place % (len(documents))).split()
            documents.insert(place, " ".join([*words[: len(words) // 2], document]))
        case "remove" if documents:
            documents.pop(place % len(documents))
        case "shuffle":
            random.shuffle(documents)
        case _:
            documents.insert(place, document)
    return documents


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("form", "mode"),
    [("jsonl", "chunk"), ("parquet", "chunk"), ("npy", "chunk"), ("npy", "late-chunk")],
)
def test_chunks_have_the_bytes_of_a_run_from_nothing_after_any_edits(
    tmp_path, ran, form, mode, seed
):
    random, texts = Random(seed), tmp_path / "in.jsonl"
    chunked = ("--on-truncate", mode, "--max-length", 12, "--overlap", 3, "--at", "sentence")
    argv = (*SET, *chunked, "-i", texts)
    if form != "npy":
        argv = (*argv, "--keep-fields")
    documents = [" ".join(random.choices(SENTENCES, k=random.randrange(9))) for _ in range(5)]
    for number in range(4):
        texts.write_text(jsonl({"tag": len(text), "text": text} for text in documents))
        good(*argv, "--update", "-o", tmp_path / f"old.{form}")
        good(*argv, "-o", tmp_path / f"{number}.{form}")
        fresh = (tmp_path / f"{number}.{form}").read_bytes()
        assert (tmp_path / f"old.{form}").read_bytes() == fresh
        ran.clear()
        random.shuffle(documents)  # no chunk is new
        texts.write_text(jsonl({"tag": len(text), "text": text} for text in documents))
        good(*argv, "--update", "-o", tmp_path / f"old.{form}")
        assert ran == []
        documents = edited(random, documents)
