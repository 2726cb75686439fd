"""`-o FILE --resume` of commands that write rows: killed runs, other inputs, finished ones."""

import random
import shutil
from unittest import mock

import pytest
import transformers
from front import TINY, bad, call, good, left_in, struck
from safetensors.numpy import load_file, save_file

from bertcli.runs.row_run import RowWriter

pytestmark = pytest.mark.usefixtures("usual_engine")

WORDS = "i love nlp the film was great hello world me too".split()  # noqa: SIM905
COMMANDS = {
    "out.jsonl.gz": ("tokenize", "--length"),
    "out.csv": ("tokenize", "--max-length", 6, "--truncation", "true", "--tokens"),
    "out.parquet": ("tokenize", "--offsets"),
    "out.npz": ("tokenize", "--ragged"),
    "chunks.jsonl": ("chunk", "--max-length", 5),
    "chunks.txt": ("chunk", "--max-length", 5),
    "classes.csv": ("classify", "--scores", "all"),
    "words.parquet": ("fill-mask",),
    "redacted.txt": ("tag", "--redact", "LABEL_1"),
    "scores.csv": ("score", "--per-token", "--within-word"),
}
HEADS = {
    "classify": "BertForSequenceClassification",
    "fill-mask": "BertForMaskedLM",
    "score": "BertForMaskedLM",
    "tag": "BertForTokenClassification",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with two thousand short texts, each with a mask, and one line that is too large."""
    rng = random.Random(3)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) for _ in range(2100)]
    lines[17] = "love " * 1000
    (tmp_path / "texts.txt").write_text("".join(f"{line} [MASK]\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_run_goes_on_and_has_the_same_bytes(name, place, models):
    command, *options = COMMANDS[name]
    model = models(HEADS[command]) if command in HEADS else TINY
    argv = (command, "-m", model, "-i", "texts.txt", *options, "--max-record-bytes", 2000)
    argv += ("--on-error", "skip")
    expected = call(*argv, "-o", f"whole {name}")
    assert expected.code == 1 and "1 record was skipped" in expected.err  # the large one
    again = (*argv, "-o", name, "--resume")
    assert struck("SIGKILL", *again, journals=1) == -9
    assert not (place / name).exists()
    assert "an interrupted run left" in bad(*argv, "-o", name).error
    assert struck("SIGKILL", *again, journals=1) == -9  # it commits anew: it went on
    done = call(*again)
    assert (done.code, done.err) == (expected.code, expected.err)
    assert (place / name).read_bytes() == (place / f"whole {name}").read_bytes()
    assert not (place / f"{name}.run").exists()
    assert "is already complete: nothing to do" in call(*again).err


def test_an_interrupt_while_the_output_is_made_says_what_is_kept(place):
    argv = ("tokenize", "-m", TINY, "love", "nlp", "-o", "x.jsonl", "--resume")
    with mock.patch.object(RowWriter, "finish", side_effect=KeyboardInterrupt):
        done = call(*argv)
    note = "note: interrupted; 2 records are kept; continue with --resume\n"
    assert (done.code, done.err) == (130, note)
    good(*argv, "-q")


def test_another_run_is_refused_and_names_what_differs(place):
    argv = ("tokenize", "-q", "-m", TINY, "-i", "texts.txt", "-o", "x.jsonl")
    assert struck("SIGKILL", *argv, "--resume", journals=1) == -9
    assert "options.length was false, now true" in bad(*argv, "--length", "--resume").error
    shutil.copytree(TINY, "other")
    with open("other/vocab.txt", "a") as vocabulary:
        vocabulary.write("more\n")
    assert "tokenizer.vocab.txt was" in bad(*argv, "--resume", "-m", "other").error
    with open("texts.txt", "a") as texts:
        texts.write("one more\n")
    assert "inputs.texts.txt was" in bad(*argv, "--resume").error
    good(*argv, "--overwrite")


def test_a_pipe_starts_over_and_its_file_is_not_taken_for_another(place):
    text = (place / "texts.txt").read_text()
    argv = ("tokenize", "-q", "-m", TINY, "--resume", "-o", "x.jsonl")
    good(*argv, stdin=text)
    good("tokenize", "-q", "-m", TINY, "-i", "texts.txt", "-o", "y.jsonl")
    assert (place / "x.jsonl").read_bytes() == (place / "y.jsonl").read_bytes()
    assert "stdin cannot be compared" in bad(*argv, stdin="other\n").error
    assert "requires -o FILE" in bad("tokenize", "-m", TINY, "a", "--resume", code=2).error


@pytest.mark.parametrize(
    "argv",
    [
        ("tokenize", "--stats", "-i", "texts.txt"),
        ("similar", "love", "--corpus", "texts.txt", "--vectors", "kept.npy"),
        ("similar", "love", "--corpus", "texts.txt", "--lexical"),
        ("duplicates", "texts.txt"),
    ],
)
def test_what_is_made_of_all_texts_is_whole_or_starts_over(argv, place):
    argv = (*argv, "-m", TINY, "-q", "-o")
    good(*argv, "whole.jsonl")
    good(*argv, "x.jsonl", "--resume")
    assert (place / "x.jsonl").read_bytes() == (place / "whole.jsonl").read_bytes()
    made = (place / "x.jsonl").stat().st_mtime_ns
    good(*argv, "x.jsonl", "--resume")
    assert (place / "x.jsonl").stat().st_mtime_ns == made
    assert left_in(place).count("x.jsonl.run") == 0
    with open("texts.txt", "a") as texts:
        texts.write("one more\n")
    assert "inputs.texts.txt was" in bad(*argv, "x.jsonl", "--resume").error


@pytest.mark.parametrize(
    "argv",
    [
        ("models",),
        ("compare", "kept.npy", "kept.npy"),
        ("tokenize", "--stats", "one text", "-m", TINY),
        ("tokenize", "--from-tokens", "love", "-m", TINY),
        ("decode", "101", "102", "-m", TINY),
        ("chunk", "one text", "-m", TINY),
        ("embed", "one text", "-m", TINY),
        ("similar", "love", "--vectors", "kept.npy", "-m", TINY),
        ("rerank", "love", "one text", "another"),
    ],
)
def test_a_complete_output_without_input_files_is_not_made_again(
    argv, tmp_path, models, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if argv[0] == "rerank":
        argv = (*argv, "-m", models("BertForSequenceClassification", num_labels=1))
    if "kept.npy" in argv:
        good("embed", "love", "you", "-q", "-m", TINY, "-o", "kept.npy")
    output = tmp_path / "x.jsonl"
    argv = (*argv, "-o", output, "--resume")
    assert call(*argv).code == 0
    content = output.read_bytes()
    made = output.stat().st_mtime_ns
    again = call(*argv)
    assert (again.code, again.err) == (0, f"note: {output} is already complete: nothing to do\n")
    assert (output.read_bytes(), output.stat().st_mtime_ns) == (content, made)


def test_a_list_of_other_models_is_not_taken_for_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    argv = ("models", "-o", tmp_path / "x.jsonl", "--resume")
    good(*argv)
    (tmp_path / "hub/models--me--new/snapshots").mkdir(parents=True)
    refused = bad(*argv)
    assert "cannot resume a different run: models.me/new was null, now" in refused.error
    assert "start over with --overwrite" in refused.hint
    good(*argv[:-1], "--overwrite")
    assert "me/new" in (tmp_path / "x.jsonl").read_text()


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_an_empty_input(form, place):
    (place / "none.txt").touch()
    argv = ("tokenize", "-q", "-m", TINY, "-i", "none.txt", "-q", "-o")
    good(*argv, f"a.{form}")
    good(*argv, f"b.{form}", "--resume")
    assert (place / f"a.{form}").read_bytes() == (place / f"b.{form}").read_bytes()


def test_decoding_goes_on(place):
    good("tokenize", "-q", "-m", TINY, "-i", "texts.txt", "-o", "ids.jsonl")
    argv = ("decode", "-q", "-m", TINY, "-i", "ids.jsonl", "-o")
    good(*argv, "whole.txt")
    assert struck("SIGKILL", *argv, "x.txt", "--resume", journals=2) == -9
    good(*argv, "x.txt", "--resume")
    assert (place / "x.txt").read_bytes() == (place / "whole.txt").read_bytes()


def test_an_interrupt_says_how_to_go_on(place):
    argv = ("tokenize", "-q", "-m", TINY, "-i", "texts.txt", "-o", "x.jsonl", "--resume")
    assert struck("SIGINT", *argv, journals=1) == 130
    good(*argv)


def test_a_changed_model_is_refused_also_where_it_is_not_the_last(place):
    reranker = transformers.BertForSequenceClassification.from_pretrained(TINY, num_labels=1)
    reranker.save_pretrained("reranker")
    shutil.copytree(TINY, "encoder")
    shutil.copy(f"{TINY}/vocab.txt", "reranker")
    command = ("similar", "i love nlp", "--corpus", "texts.txt", "--top-k", 2)
    command += ("-m", "encoder", "--rerank", "reranker", "-o", "hits.jsonl", "--resume")
    assert call(*command).code == 0
    assert "already complete" in call(*command).err
    tensors = load_file("encoder/model.safetensors")
    tensors["embeddings.word_embeddings.weight"] *= 2
    save_file(tensors, "encoder/model.safetensors")
    assert "cannot resume a different run" in bad(*command).error


def test_nothing_is_removed_from_a_run_folder_that_is_refused(place):
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "bertcli.lock").touch()
    (place / "out.jsonl.run").symlink_to("elsewhere", target_is_directory=True)
    assert "was not made by bertcli" in bad("tokenize", "hello", "-o", "out.jsonl").error
    assert left_in(place / "elsewhere") == ["bertcli.lock"]
