"""`bertcli chunk` through the front door: formats, inputs, ids, refusals."""

import re
from unittest import mock

import pytest
from front import call, good, shell

from bertcli.tokenizing.chunks import Chunker

TEXT = "I love NLP! It is unaffable. Café au lait, s’il vous plaît."


def test_a_closed_pipe_is_no_error(tmp_path):
    (tmp_path / "in.txt").write_text("some words here\n" * 50_000)
    done = shell("bertcli chunk -i in.txt -f txt | head -1", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, "some words here\n", "")


def test_an_interrupt_leaves_nothing(tmp_path):
    out = tmp_path / "out.jsonl"
    with mock.patch.object(Chunker, "token_counts", side_effect=[[0], KeyboardInterrupt]):
        done = call("chunk", "a", "-o", out)
    assert (done.code, done.out, list(tmp_path.iterdir())) == (130, "", [])


GRAPHEMES = {
    "a letter and its accent": "e\u0301",
    "a flag": "\U0001f1e9\U0001f1ea",
    "a family": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "a hand with a skin tone": "\U0001f44d\U0001f3fd",
    "Hangul in parts": "\u1112\u1161\u11ab",
    "Devanagari": "\u0915\u093f",
    "an end of a line": "\r\n",
}


@pytest.mark.parametrize("name", GRAPHEMES)
@pytest.mark.parametrize("at", ["token", "word"])
@pytest.mark.parametrize("length", [6, 9])
def test_no_grapheme_that_fits_is_divided(name, at, length, tmp_path):
    grapheme = GRAPHEMES[name]
    text = "x".join([grapheme * 40, "y" * 30, grapheme * 9])
    (tmp_path / "one.md").write_bytes(text.encode())
    done = good("chunk", "-i", tmp_path / "one.md", "--max-length", length, "--at", at)
    starts = {row["start"] for row in done.rows} - {0}
    whole = {match.start() + n for match in re.finditer(grapheme, text)
             for n in range(1, len(grapheme))}  # fmt: skip
    assert not starts & whole
    assert "".join(text[row["start"] : row["end"]] for row in done.rows) == text


def test_a_grapheme_that_does_not_fit_is_divided(tmp_path):
    text = GRAPHEMES["Hangul in parts"] * 9  # three tokens each
    (tmp_path / "one.md").write_text(text)
    done = good("chunk", "-i", tmp_path / "one.md", "--max-length", 4)
    assert "".join(row["text"] for row in done.rows) == text
    assert {row["n_tokens"] for row in done.rows} <= {3, 4}
