"""Commands as functions of Python: the rows are those that the commands print."""

import numpy as np
import pandas
import pyarrow
import pytest
from front import TINY, good, json_in

import bertcli
from bertcli import BertcliError

TEXTS = ["It is raining.", "I like tea.", "It is raining!", "The cat sat on the mat."]
QUIET = {"model": str(TINY), "quiet": True}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.fixture
def frame():
    columns = {"body": TEXTS, "id": [7, 8, 9, 10], "stars": [1, 2, 3, 4]}
    return pandas.DataFrame(columns)


def rows(*argv):
    return good(*argv, "-q", "-m", TINY, BERTCLI_BACKEND="auto").rows


def test_files_and_lists_give_the_rows_of_the_commands(file):
    for texts in (file, str(file), TEXTS, tuple(TEXTS), iter(TEXTS)):
        assert bertcli.tokenize(texts, **QUIET) == rows("tokenize", "-i", file)
    for texts in (file, TEXTS, iter(TEXTS)):
        argv = ("chunk", "-i", file, "--max-length", 4, "--at", "word")
        assert bertcli.chunk(texts, max_length=4, at="word", **QUIET) == rows(*argv)
        argv = ("duplicates", file, "--threshold", 0.9)
        assert bertcli.duplicates(texts if texts is file else TEXTS, threshold=0.9, **QUIET) == (
            rows(*argv)
        )


@pytest.mark.parametrize("more", [{}, {"hybrid": True}, {"threshold": 0.5}, {"top_k": 1}])
def test_a_search_has_the_hits_of_the_command(file, more):
    options = [x for name, value in more.items() for x in (f"--{name.replace('_', '-')}", value)]
    argv = ["similar", "raining", "tea", "--corpus", file, *(x for x in options if x is not True)]
    expected = rows(*argv)
    for corpus in (file, TEXTS):
        assert bertcli.search(["raining", "tea"], corpus, **more, **QUIET) == expected
    assert bertcli.search("raining", TEXTS, **more, **QUIET) == expected[:1]


def test_a_search_keeps_vectors_or_an_index(file, tmp_path):
    expected = rows("similar", "raining", "--corpus", file)
    for kept in ({"vectors": tmp_path / "v.npy"}, {"index": tmp_path / "i"}):
        for _ in range(2):
            assert bertcli.search("raining", file, **kept, **QUIET) == expected
    assert bertcli.search("raining", index=tmp_path / "i", **QUIET) == expected


def test_data_frames_are_read_by_their_columns(frame):
    table = pyarrow.table(frame)
    options = {"text_field": "body", "keep_fields": ["stars"], **QUIET}
    for given in (frame, table, frame.to_dict("records")):
        found = bertcli.tokenize(given, **options)
        assert [(row["id"], row["stars"]) for row in found] == [(7, 1), (8, 2), (9, 3), (10, 4)]
    (group,) = bertcli.duplicates(frame, text_field="body", threshold=0.9, **QUIET)
    assert (group["keep_id"], group["ids"]) == (7, [7 + row for row in group["rows"]])
    hits = bertcli.search("tea", frame, text_field="body", keep_fields="*", top_k=4, **QUIET)
    assert {hit["stars"] for hit in hits[0]["hits"]} == {1, 2, 3, 4}


def test_columns_are_texts_and_a_frame_alone_is_none(frame):
    expected = bertcli.tokenize(TEXTS, **QUIET)
    for column in (frame["body"], pyarrow.table(frame)["body"], frame["body"].to_numpy()):
        assert bertcli.tokenize(column, **QUIET) == expected
    assert bertcli.tokenize(frame, text_field="body", keep_fields=True, **QUIET)[0]["stars"] == 1
    embedder, tokenizer = bertcli.Embedder.load(TINY), bertcli.Tokenizer.load(TINY)
    assert len(embedder.encode(frame["body"])) == len(TEXTS)
    for call in (embedder.encode, tokenizer, lambda texts: bertcli.tokenize([texts], **QUIET)):
        with pytest.raises(BertcliError, match=r"data frame is not a text|, not a string"):
            call(frame)
    for call in (bertcli.train, bertcli.evaluate):
        with pytest.raises(BertcliError, match="expected the name of a file, found DataFrame"):
            call(frame, TINY)


def test_a_map_is_rows_and_a_page(file, tmp_path):
    page = tmp_path / "map.html"
    found = bertcli.corpus_map(TEXTS, page, clusters=2, **QUIET)
    assert found == rows("map", file, "--clusters", 2, "-f", "jsonl")
    assert b"It is raining!" in page.read_bytes()
    with pytest.raises(BertcliError, match="already exists"):
        bertcli.corpus_map(TEXTS, page, **QUIET)


def test_folders_of_models(file, tmp_path):
    manifest = bertcli.export(tmp_path / "exported", model=TINY)
    assert manifest["accuracy"] == json_in(tmp_path / "exported" / "manifest.json")["accuracy"]
    manifest = bertcli.distil(tmp_path / "student", file, dim=8, **QUIET)
    assert manifest["dim"] == 8
    vectors = bertcli.Embedder.load(tmp_path / "student").encode(TEXTS)
    assert vectors.shape == (4, 8) and np.isfinite(vectors).all()


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        (lambda: bertcli.tokenize("nowhere.txt"), "nowhere.txt: file not found", ""),
        (lambda: bertcli.tokenize(7), "expected texts, found int", "the name of a file"),
        (lambda: bertcli.tokenize([7]), "text 1: the text is 7, not a string", ""),
        (lambda: bertcli.tokenize([{"a": "b"}]), "text 1: field 'text' not found", "text_field"),
        (lambda: bertcli.chunk(TEXTS, max_lenght=3), "unknown option 'max_lenght'", "max_length"),
        (lambda: bertcli.search("a"), "nothing to search", "give a corpus"),
        (lambda: bertcli.duplicates(TEXTS, threshold=2), "threshold=2 is not above 0", ""),
        (lambda: bertcli.export("x", to="y"), "unknown to 'y'", "openvino"),
        (lambda: bertcli.distil("x", words=3), "words requires corpus", ""),
    ],
)
def test_what_cannot_be_is_one_line_in_keywords(call, error, hint):
    with pytest.raises(BertcliError) as failed:
        call()
    assert error in str(failed.value) and hint in failed.value.hint
    assert "--" not in f"{failed.value}{failed.value.hint}"


def test_nothing_is_printed_but_warnings(capfd):
    bertcli.tokenize(["a b c d e f"], model=TINY, max_length=4, truncation=True)
    assert capfd.readouterr() == ("", "warning: 1 of 1 texts truncated to 4 tokens (4 dropped)\n")
    bertcli.tokenize(["a b c d e f"], max_length=4, truncation=True, **QUIET)
    assert capfd.readouterr() == ("", "")
