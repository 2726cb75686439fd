"""`bertcli chunk` through the front door: formats, inputs, ids, refusals."""

from unittest import mock

from front import call, shell

from bertcli.tokenizing.chunks import Chunker

TEXT = "I love NLP! It is unaffable. Café au lait, s’il vous plaît."


def test_a_closed_pipe_is_no_error(tmp_path):
    (tmp_path / "in.txt").write_text("some words here\n" * 50_000)
    done = shell("bertcli chunk -i in.txt -f txt | head -1", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, "some words here\n", "")


def test_an_interrupt_leaves_nothing(tmp_path):
    out = tmp_path / "out.jsonl"
    with mock.patch.object(Chunker, "counts", side_effect=[[0], KeyboardInterrupt]):
        done = call("chunk", "a", "-o", out)
    assert (done.code, done.out, list(tmp_path.iterdir())) == (130, "", [])
