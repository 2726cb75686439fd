"""`bertcli embed` that is killed, or has no room, ends in the bytes of a run that went well."""

import os
import random
import shutil
from pathlib import Path
from unittest import mock

import pytest
from front import (
    NO_BYTECODE,
    TINY,
    bad,
    call,
    contents,
    good,
    jsonl,
    peak,
    shell,
)

from bertcli.runs.run_folder import RunWriter
from bertcli.runs.vector_run import VectorWriter

FORMS = ["npy", "jsonl", "parquet"]
SET = ("embed", "-q", "--device", "cpu", "--threads", 1, "--window", 10)


@pytest.fixture(scope="module")
def lines():
    choose = random.Random(5)
    words = ["the", "quick", "brown", "fox", "paris", "is", "nlp", "a", "b", "c", "1", "2", "3"]
    return [" ".join(choose.choices(words, k=choose.randint(1, 20))) for _ in range(400)]


@pytest.fixture
def texts(tmp_path, lines):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


@pytest.fixture
def whole(tmp_path, texts):
    """Return what makes the file of a run that nothing happened to."""

    def make(suffix):
        path = tmp_path / f"whole.{suffix}"
        good(*SET, "-m", TINY, "-i", texts, "-o", path)
        return path

    return make


def left_beside(path):
    kept = {path.name, f"{path.name}.manifest.json"}
    return [one.name for one in path.parent.glob(f"{path.name}*") if one.name not in kept]


def test_killed_before_it_replaced_anything(tmp_path, texts, whole):
    """Where --overwrite was killed before its first journal, --resume finds the old output."""
    out = whole("npy")
    before = out.read_bytes()
    (tmp_path / "whole.npy.run").mkdir()
    for end in (".run/vectors", ".run/fields", ".run/bertcli.lock"):
        Path(f"{out}{end}").write_bytes(b"half")
    good(*SET, "-m", TINY, "-i", texts, "-o", out, "--resume")
    assert out.read_bytes() == before and not left_beside(out)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("kills", "suffix", "options"),
    [
        (8, "npy", ""),
        (8, "jsonl", "--keep-fields tag"),
        (8, "parquet", "--keep-fields tag"),
        (1, "npz", ""),
        (1, "safetensors", ""),
        (1, "csv", ""),
        (1, "npy", "--precision int8"),
        (1, "npy", "--token-vectors"),
        (1, "npy", "--on-truncate chunk --max-length 8 --overlap 2"),
        (1, "jsonl", "--on-truncate late-chunk --max-length 8 --overlap 2 --stride 9"),
        (2, "npy", "--update"),
        (1, "npy", "--skip-empty"),
    ],
)
def test_killed_at_random_instants(forked, tmp_path, lines, kills, suffix, options):
    file, old, name = tmp_path / "texts.jsonl", tmp_path / "old", f"out.{suffix}"
    rows = [{"text": line, "tag": number % 3} for number, line in enumerate(lines)]
    again = ("--update",) if options == "--update" else (*options.split(), "--resume")
    argv = (*SET, "--window", 40, "--backend", "auto", "-m", TINY, "-i", file, *again)
    old.mkdir()
    if options == "--update":  # of the vectors of half of the texts, and another
        file.write_text(jsonl([*rows[::2], {"text": "another"}]))
        good(*argv, "-o", old / name)
    file.write_text(jsonl([] if options == "--skip-empty" else rows))

    def begun(out):
        if not out.exists():
            shutil.copytree(old, out)
        return [*argv, "-o", out / name]

    forked.check(begun, contents, tmp_path, kills)


@pytest.mark.parametrize("suffix", FORMS)
def test_a_disk_that_is_full(tmp_path, texts, whole, suffix, usual_engine):
    """Also when there is room again for a while only."""
    expected, out = whole(suffix), tmp_path / f"out.{suffix}"
    command = " ".join(map(str, (*SET, "-m", TINY, "-i", texts, "-o", out)))
    for more in ("", "--resume"):
        room = 16 if not more else 32
        done = shell(
            f"ulimit -f {room}; exec bertcli {command} {more}", cwd=tmp_path, env=NO_BYTECODE
        )
        assert (done.code, done.out) == (1, "")
        assert done.error == f"{out}: cannot be written: File too large"
        hint = "free disk space, then run the command again; a file of -o goes on with --resume"
        assert done.hint == hint
        assert not out.exists()
    good(*SET, "-m", TINY, "-i", texts, "-o", out, "--resume")
    assert out.read_bytes() == expected.read_bytes()
    assert left_beside(out) == []


def test_records_are_kept_after_a_minute_of_long_texts(tmp_path):
    """By their characters, so that the records of a window are those of the run resumed."""
    (tmp_path / "in.txt").write_text(f"{'word ' * 60_000}\n" * 3)
    argv = ("embed", "-m", TINY, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.npy")
    commit = RunWriter.commit
    commits = iter((commit, commit))

    def killed(sink, state):
        next(commits, mock.Mock(side_effect=KeyboardInterrupt))(sink, state)

    with mock.patch.object(RunWriter, "commit", killed):
        done = call(*argv)
    assert (done.code, done.err) == (
        130,
        "note: interrupted; 2 records are kept; continue with --resume\n",
    )
    assert call(*argv, "--resume", "-q").code == 0


def test_an_interrupt_says_what_is_kept(tmp_path):
    """What goes on is the same command with --resume."""
    argv = ("embed", "-m", TINY, "one", "two", "-o", tmp_path / "out.npy")
    with mock.patch.object(VectorWriter, "finish", side_effect=KeyboardInterrupt):
        done = call(*argv)
    note = "note: interrupted; 2 records are kept; continue with --resume\n"
    assert (done.code, done.out, done.err) == (130, "", note)
    assert call(*argv, "--resume", "-q").code == 0
    with mock.patch.object(VectorWriter, "write", side_effect=KeyboardInterrupt):
        done = call(*argv, "--overwrite", "--window", 5000)
    none = "note: interrupted before anything was committed: the next run starts over\n"
    assert (done.code, done.err) == (130, none)
    with mock.patch.object(VectorWriter, "finish", side_effect=KeyboardInterrupt):
        done = call(*argv, "--overwrite")
    assert done.err.endswith("; continue with --resume instead of --overwrite\n")
    assert bad(*argv, "--overwrite", "--resume", code=2).hint.endswith("--overwrite starts over")
    assert call(*argv, "--resume", "-q").code == 0


# --- what a run that is resumed refuses ---------------------------------------------------------


@pytest.fixture
def begun(tmp_path, texts):
    """A run that was interrupted at its end: a copy of the model, the texts and the output."""
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    argv = (*SET, "-m", model, "-i", texts, "-o", tmp_path / "out.npy")
    with mock.patch.object(VectorWriter, "finish", side_effect=KeyboardInterrupt):
        assert call(*argv).code == 130
    return argv


def other_weights(folder, argv):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model" / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"][0] += 1
    save_file(tensors, folder / "model" / "model.safetensors", {"format": "pt"})
    return argv, "weights.model.safetensors was "


def other_tokenizer(folder, argv):
    file = next(folder.glob("model/vocab.txt"), folder / "model" / "tokenizer.json")
    text = file.read_text("utf-8")
    file.write_text(text + "\n" if file.suffix == ".json" else text.replace("paris", "parys"))
    return argv, f"tokenizer.{file.name} was "


def other_name(folder, argv):
    shutil.copytree(folder / "model", folder / "twin")
    return [folder / "twin" if part == folder / "model" else part for part in argv], "model was "


def other_texts(folder, argv):
    file = folder / "texts.txt"
    file.write_text(file.read_text().replace("paris", "rome"))
    return argv, "inputs."


def fewer_texts(folder, argv):
    file = folder / "texts.txt"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:100]))
    return argv, "inputs."


def option(message, *more):
    return lambda folder, argv: ([*argv, *more], message)


CHANGES = {
    "weights": other_weights,
    "tokenizer": other_tokenizer,
    "model": other_name,
    "texts": other_texts,
    "fewer texts": fewer_texts,
    "pooling": option('options.pooling was "mean", now "cls"', "--pooling", "cls"),
    "layers": option("options.layers was [-1], now [0]", "--layers", "0"),
    "normalize": option("options.normalize was false, now true", "--normalize"),
    "dim": option("options.dim was null, now 8", "--dim", 8),
    "max length": option("options.max_length was 128, now 9", "--max-length", 9),
    "prompt": option('options.prompt was "", now "a"', "--prompt", "a"),
    "dtype": option('options.dtype was "float32", now "bfloat16"', "--dtype", "bfloat16"),
    "window": option("options.window was 10, now 11", "--window", 11),
    "budget": option("options.batch_tokens was 4096, now 99", "--batch-tokens", 99),
    "precision": option('precision was "float32", now "int8"', "--precision", "int8"),
    "input": option('input.encoding was "utf-8", now "latin-1"', "--encoding", "latin-1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_run_is_not_resumed(tmp_path, begun, name):
    argv, message = CHANGES[name](tmp_path, begun)
    before = {one: one.read_bytes() for one in tmp_path.glob("out*/*")}
    done = call(*argv, "--resume")
    assert (done.code, done.out) == (1, "")
    assert done.error.startswith(f"{tmp_path / 'out.npy'}: ")
    assert message in done.error
    assert "--overwrite" in done.hint
    assert {one: one.read_bytes() for one in tmp_path.glob("out*/*")} == before != {}


def test_what_does_not_change_the_numbers_may_change(tmp_path, begun, whole):
    good(*begun, "--resume", "--no-manifest")
    assert (tmp_path / "out.npy").read_bytes() == whole("npy").read_bytes()


# --- error lines --------------------------------------------------------------------------------


def without_pooler(folder):
    from safetensors.numpy import load_file, save_file

    shutil.copytree(TINY, folder / "m")
    tensors = load_file(folder / "m" / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler")}
    save_file(kept, folder / "m" / "model.safetensors", {"format": "pt"})
    return ["-m", folder / "m", "--pooling", "pooler"]


def with_nan(folder):
    from safetensors.numpy import load_file, save_file

    shutil.copytree(TINY, folder / "m")
    tensors = load_file(folder / "m" / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][:] = float("nan")
    save_file(tensors, folder / "m" / "model.safetensors", {"format": "pt"})
    return ["-m", folder / "m"]


ERRORS = {
    "device": (["--device", "cuda:77"], "device 'cuda:77' not found", 2),
    "one of two devices": (["--device", "cpu,gpu"], "device 'gpu' not found", 2),
    "layers": (["--layers", "x"], "--layers x is not a list of numbers", 2),
    "layer": (["--layers", "3"], "layer 3 not found", 2),
    "layer from above": (["--layers", "-4"], "layer -4 not found", 2),
    "pooler": (without_pooler, "", 1),
    "dim": (["--dim", "33"], "--dim 33 is not possible: the vectors have 32 dimensions", 2),
    "NaN": (with_nan, "text 1: its vector contains NaN or infinity", 1),
    "resume": (["--resume", "--overwrite"], "--resume cannot be combined with --overwrite", 2),
    "folder": (["-o", "none/x.npy"], "none/x.npy: cannot be written: No such file", 1),
    "length": (["--max-length", "129"], "--max-length 129 is more than the 128 positions", 2),
    "cut": (
        ["--max-length", "3", "--on-truncate", "error"],
        "text 1: ",
        1,
    ),
    "prompt": (["--prompt-name", "query"], "", 2),
    "format": (["-f", "tsv"], "this command cannot write tsv", 2),
    "stream": (["--resume"], "--resume requires -o FILE", 2),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("target", [[], ["-o", "out.npy"]])
def test_what_cannot_be_done_is_one_line_and_a_hint(tmp_path, monkeypatch, name, target):
    options, message, code = ERRORS[name]
    options = options(tmp_path) if callable(options) else options
    if name in ("resume", "folder", "stream") and bool(target) != (name == "resume"):
        return  # the option is about the file itself
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = bad("embed", "-q", "-m", TINY, "i love nlp", *options, *target, code=code)
    assert done.error.startswith(message)
    assert done.hint
    assert sorted(tmp_path.iterdir()) == before


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs wait4")
def test_memory_does_not_grow_with_the_input(tmp_path):
    words = ["the", "quick", "brown", "fox", "i", "love", "nlp", "a", "b", "c"]
    lines = [f"{words[n % 10]} {words[n // 10 % 10]}\n" for n in range(10_000)]
    used = []
    for times in (1, 10):
        file = tmp_path / f"{times}.txt"
        with file.open("w") as out:
            for _ in range(times):
                out.writelines(lines)
        options = ("-q", "-m", TINY, "--device", "cpu", "--threads", 1, "-i", file)
        used.append(peak("embed", *options, "-o", tmp_path / f"{times}.npy"))
    assert used[1] < used[0] + 50, used
