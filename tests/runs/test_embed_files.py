"""The files of a run of `embed -o`: what is refused, kept, named and checked; none is ever lost."""

import hashlib
import json
import os
import shutil
import stat
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from front import (
    TINY,
    bad,
    call,
    contents,
    good,
    json_in,
    jsonl,
    left_in,
    shell,
)
from vector_files import vectors_in

from bertcli.io import output_files
from bertcli.runs.run_folder import RunWriter
from bertcli.runs.vector_run import VectorWriter

SET = ("embed", "-q", "-m", TINY, "--device", "cpu", "--threads", 1, "--window", 2)
FORMS = ("npy", "npz", "safetensors", "parquet", "jsonl", "csv")
LINES = [{"id": f"ü{n}", "text": f"i love nlp {n}"} for n in range(6)]
OWN = (
    output_files.MANIFEST,
    output_files.INDEX,
    *(f".run/{name}" for name in (output_files.LOCK, *output_files.RUN_FILES)),
)


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text(jsonl(LINES))
    return file


def interrupted(*argv):
    """A run that was stopped when all of its rows were committed."""
    with mock.patch.object(VectorWriter, "finish", side_effect=KeyboardInterrupt):
        assert call(*argv).code == 130


# --- an input that is one of the run's own files ------------------------------------------------


@pytest.mark.parametrize("end", ["", *OWN])
@pytest.mark.parametrize("how", ["name", "symlink", "link", "stdin"])
def test_an_input_that_the_run_would_remove_is_refused(tmp_path, texts, end, how):
    out = tmp_path / "s.jsonl"
    (tmp_path / f"{out.name}{end}").parent.mkdir(exist_ok=True)
    own = texts.rename(tmp_path / f"{out.name}{end}")
    given = own
    if how == "symlink":
        (given := tmp_path / "given.jsonl").symlink_to(own)
    elif how == "link":
        os.link(own, given := tmp_path / "given.jsonl")
    before = contents(tmp_path)
    if how == "stdin":
        if end not in ("", ".run/fields", ".run/bertcli.lock"):
            return  # each is a process
        command = " ".join(map(str, (*SET, "-o", out, "--overwrite")))
        done = shell(f"exec bertcli {command} < {own}", cwd=tmp_path)
        assert (done.code, done.out) == (1, "")
    else:
        done = bad(*SET, "-i", given, "-o", out, "--overwrite")
    assert done.error.startswith(f"{out}: ")
    assert "would be overwritten" in done.error
    assert contents(tmp_path) == before


OF_MODELS = {  # commands that open a model and write a file
    "embed": ("embed", "hi"),
    "tokenize": ("tokenize", "hi"),
    "count": ("tokenize", "--count", "hi"),
    "tokens": ("tokenize", "--from-tokens", "hi"),
    "decode": ("decode", "101"),
    "chunk": ("chunk", "hi", "--max-length", "8"),
    "classify": ("classify", "hi"),
    "rerank": ("rerank", "hi", "ho"),
    "similar": ("similar", "hi", "--corpus", "TEXTS"),
    "mine": ("similar", "--mine", "-i", "PAIRS", "--corpus", "TEXTS"),
    "duplicates": ("duplicates", "TEXTS"),
    "evaluate": ("evaluate", "PAIRS", "--task", "embed"),
    "compared": ("evaluate", "PAIRS", "--task", "embed", "--compare", "MODEL"),
}


@pytest.mark.parametrize("command", OF_MODELS)
def test_an_output_among_the_files_of_the_model_is_refused(tmp_path, models, texts, command):
    pretrained = models("BertForSequenceClassification", num_labels=1)
    shutil.copytree(pretrained, model := tmp_path / "m")
    (tmp_path / "out.jsonl").symlink_to(model / "config.json")
    (pairs := tmp_path / "pairs.jsonl").write_text('{"anchor": "hi", "positive": "ho"}\n' * 3)
    before = contents(model)
    files = {"TEXTS": texts, "PAIRS": pairs, "MODEL": model}
    argv = [files.get(part, part) for part in OF_MODELS[command]]
    argv += ["-q", "-m", pretrained if command == "compared" else model]
    assert "config.json" in bad(*argv, "-o", tmp_path / "out.jsonl", "--overwrite").error
    assert "tokenizer.json" in bad(*argv, "-o", model / "tokenizer.json", "--overwrite").error
    assert contents(model) == before


@pytest.mark.parametrize("command", ["rerank", "similar", "mine", "duplicates", "evaluate"])
def test_an_output_that_is_there_is_refused_before_anything_is_computed(tmp_path, models, command):
    """So that an hour's work is not thrown away at its end."""
    (out := tmp_path / "out.jsonl").write_text("precious")
    (broken := tmp_path / "broken.jsonl").write_text('{"text": "a"\n')
    argv = {
        "rerank": ["rerank", "hi", "-i", broken],
        "similar": ["similar", "hi", "--corpus", broken],
        "mine": ["similar", "--mine", "-i", broken, "--corpus", broken],
        "duplicates": ["duplicates", broken],
        "evaluate": ["evaluate", broken, "--task", "embed"],
    }[command]
    model = models("BertForSequenceClassification", num_labels=1)
    assert "already exists" in bad(*argv, "-q", "-m", model, "-o", out).error
    assert "broken.jsonl:1" in bad(*argv, "-q", "-m", model, "-o", out, "--overwrite").error
    assert out.read_text() == "precious"


def test_results_do_not_replace_the_vectors_that_they_are_made_of(tmp_path, texts):
    for argv in (("similar", "hi", "--corpus", texts), ("duplicates", texts)):
        both = tmp_path / f"{argv[0]}.parquet"
        done = bad(*argv, "-q", "-m", TINY, "--vectors", both, "-o", both, "--overwrite")
        assert "would be overwritten" in done.error
        assert not both.exists()


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="the system has no such flag")
@pytest.mark.parametrize("end", OWN)
def test_a_link_at_the_name_of_a_side_file_leads_nowhere(tmp_path, texts, end):
    (other := tmp_path / "other").write_text("precious")
    (tmp_path / f"s.npy{end}").parent.mkdir(exist_ok=True)
    (tmp_path / f"s.npy{end}").symlink_to(other)
    for more in ([], ["--resume"], ["--overwrite"]):
        assert call(*SET, "-i", texts, "-o", tmp_path / "s.npy", *more).code in (0, 1)
        assert other.read_text() == "precious"


def test_a_missing_input_is_found_before_anything_is_removed(tmp_path, texts):
    out = tmp_path / "s.npy"
    interrupted(*SET, "-i", texts, "-o", out)
    before = contents(tmp_path)
    assert "file not found" in bad(*SET, "-i", tmp_path / "no", "-o", out, "--overwrite").error
    assert contents(tmp_path) == before


READ = {  # commands that read a file of texts, and what makes that file theirs
    "tokenize": ("tokenize", "-m", TINY, "-i", "FILE", "-o", "FILE"),
    "count": ("tokenize", "--count", "-m", TINY, "-i", "FILE", "-o", "FILE"),
    "stats": ("tokenize", "--stats", "-m", TINY, "-i", "FILE", "-o", "FILE"),
    "padded": ("tokenize", "--padding", "longest", "-m", TINY, "-i", "FILE", "-o", "FILE"),
    "pairs": ("tokenize", "-m", TINY, "--pairs", "FILE", "-o", "FILE"),
    "decode": ("decode", "-m", TINY, "-i", "FILE", "-o", "FILE"),
    "corpus": ("similar", "-q", "x", "--corpus", "FILE", "-m", TINY, "-o", "FILE"),
    "glob": ("similar", "-q", "x", "--corpus", "GLOB", "-m", TINY, "-o", "FILE"),
    "duplicates": ("duplicates", "-q", "GLOB", "-m", TINY, "-o", "FILE"),
    "fill-mask": ("fill-mask", "-m", "PRETRAINED", "-i", "FILE", "-o", "FILE"),
    "score": ("score", "-m", "PRETRAINED", "-i", "FILE", "-o", "FILE"),
}


@pytest.mark.parametrize("how", ["name", "symlink", "link"])
@pytest.mark.parametrize("command", READ)
def test_no_command_writes_to_its_input(tmp_path, texts, command, how, models):
    if command == "decode":
        texts.write_text('{"input_ids": [1, 2]}\n')
    elif command == "pairs":
        texts.write_text('{"text": "a", "pair": "b"}\n')
    elif command == "fill-mask":
        texts.write_text('{"text": "i [MASK] nlp"}\n')
    given = tmp_path / "given.jsonl"
    given = given if how != "name" else texts
    if how == "symlink":
        given.symlink_to(texts)
    elif how == "link":
        os.link(texts, given)
    argv = list(READ[command])
    argv = [
        tmp_path / f"[{texts.name[0]}]{texts.name[1:]}" if one == "GLOB" else one for one in argv
    ]
    if "FILE" in argv[:-1]:
        argv[argv.index("FILE")] = texts
    argv[argv.index("FILE")] = given
    argv = [models("BertForMaskedLM") if part == "PRETRAINED" else part for part in argv]
    before = contents(tmp_path)
    for more in ([], ["--overwrite"]):
        done = bad(*argv, *more)
        assert done.error.startswith(f"{given}: ")
        assert "input" in done.error
    assert contents(tmp_path) == before


LISTED = {
    "tokenize": ("tokenize",),
    "count": ("tokenize", "--count"),
    "chunk": ("chunk", "--max-length", 8),
    "embed": ("embed",),
    "fill-mask": ("fill-mask",),
}


@pytest.mark.parametrize("command", LISTED)
def test_no_command_writes_to_the_list_of_its_inputs(tmp_path, texts, command, models):
    (names := tmp_path / "names.jsonl").write_text(f"{texts}\n")
    texts.write_text('{"text": "i [MASK] nlp"}\n')
    model = models("BertForMaskedLM") if command == "fill-mask" else TINY
    before = contents(tmp_path)
    argv = (*LISTED[command], "-m", model, "--files-from", names, "-o", names, "--overwrite")
    assert bad(*argv).error == f"{names}: the input {names} would be overwritten"
    assert contents(tmp_path) == before


def test_stdin_and_stdout_may_be_the_same_file(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("i love nlp\n")
    for line in (f"-i {file} >> {file}", f"< {file} >> {file}", f"-o {file} --overwrite < {file}"):
        done = shell(f"exec bertcli tokenize -f jsonl -m {TINY} {line}", cwd=tmp_path)
        assert (done.code, done.out) == (1, "")
        assert "would be overwritten" in done.error or "an input" in done.error
        assert file.read_text() == "i love nlp\n"


def test_compare_does_not_write_to_its_files(tmp_path):
    file = tmp_path / "v.jsonl"
    file.write_text("[1, 2]\n")
    argv = ("compare", file, file, "-o", file, "--overwrite")
    assert "would be overwritten" in bad(*argv).error
    assert file.read_text() == "[1, 2]\n"


def test_a_folder_is_not_made_of_what_lies_in_it(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "vocab.txt").write_text("one two three\n")
    argv = ("pretrain", "vocab", folder / "vocab.txt", "-o", folder, "--overwrite")
    assert "vocab.txt" in bad(*argv, "--size", 200).error
    assert contents(folder) == {"vocab.txt": b"one two three\n"}
    (folder / "instances.json").write_text("one\ntwo\n\nthree\nfour\n")
    (folder / "vocab.txt").unlink()
    argv = ("pretrain", "prepare", folder / "instances.json", "--input-format", "txt", "-m", TINY)
    assert "instances.json" in bad(*argv, "-o", folder, "--overwrite").error
    assert list(contents(folder)) == ["instances.json"]


# --- modes --------------------------------------------------------------------------------------


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob("s.*")}


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
@pytest.mark.parametrize("form", FORMS)
def test_modes_are_kept(tmp_path, texts, form):
    out = tmp_path / f"s.{form}"
    argv = (*SET, "-i", texts, "-o", out)
    before, umask = os.umask(0o022), 0o644
    try:
        good(*argv)
        assert set(modes(tmp_path).values()) == {umask}
        out.chmod(0o600)
        good(*argv, "--overwrite")
        assert set(modes(tmp_path).values()) == {0o600}  # the manifest tells of what is private
        interrupted(*argv, "--overwrite")
        assert modes(tmp_path).pop(f"s.{form}.run") == 0o700
        assert set(modes(tmp_path).values()) == {0o600, 0o700}
        good(*argv, "--resume")
        assert set(modes(tmp_path).values()) == {0o600}
        out.chmod(0o444)
        good(*argv, "--overwrite")
        assert modes(tmp_path)[out.name] == 0o444
    finally:
        os.umask(before)


@pytest.mark.parametrize("command", ["tokenize", "embed"])
def test_names_that_leave_no_room_for_side_files(tmp_path, command):
    out = tmp_path / f"{'x' * 250}.npy"
    assert "File name too long" in bad(command, "-q", "-m", TINY, "hi", "-o", out).error
    assert not list(tmp_path.iterdir())


# --- resume -------------------------------------------------------------------------------------


def flipped(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    stats = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stats.st_atime_ns, stats.st_mtime_ns))


def begun(tmp_path, texts, form="npy"):
    """A run that was interrupted with some of its records committed."""
    out = tmp_path / f"s.{form}"
    commit, left = RunWriter.commit, 2

    def stopping(self, state):
        nonlocal left
        commit(self, state)
        left -= 1
        if not left:
            raise KeyboardInterrupt

    with mock.patch.object(RunWriter, "commit", stopping):
        assert call(*SET, "-i", texts, "-o", out).code == 130
    return (*SET, "-i", texts, "-o", out, "--resume")


@pytest.mark.parametrize("form", ["npy", "jsonl"])
def test_an_input_that_changed_behind_the_committed_rows_is_refused(tmp_path, texts, form):
    argv = begun(tmp_path, texts, form)
    flipped(texts, -3)
    done = bad(*argv)
    assert f"inputs.{texts} was " in done.error
    assert "--overwrite" in done.hint
    flipped(texts, -3)
    good(*argv)
    flipped(texts, -3)
    assert f"inputs.{texts} was " in bad(*argv).error  # complete, of another input


@pytest.mark.parametrize(
    ("form", "name", "at"),
    [
        ("npy", "vectors", 0),
        ("npy", "vectors", -1),
        ("npy", "fields", 12),
        ("jsonl", "fields", 12),
        ("npz", "vectors", 400),
    ],
)
def test_a_flipped_bit_is_found(tmp_path, texts, form, name, at):
    argv = begun(tmp_path, texts, form)
    flipped(tmp_path / f"s.{form}.run" / name, at)
    done = bad(*argv)
    assert f"s.{form}.run/{name}: " in done.error
    assert "--overwrite" in done.hint
    good(*argv[:-1], "--overwrite")


def test_of_stdin_the_committed_records_are_compared(tmp_path):
    out = tmp_path / "s.npy"
    argv = ("embed", "-m", TINY, "-o", out, "--window", 2)
    text = "".join(f"i love nlp {n}\n" for n in range(6))
    with mock.patch.object(VectorWriter, "finish", side_effect=KeyboardInterrupt):
        assert call(*argv, stdin=text).code == 130
    changed = text.replace("nlp 0", "nlp 9")
    assert "first 6 records are not those" in call(*argv, "--resume", stdin=changed).err
    done = call(*argv, "--resume", stdin=text)
    assert done.code == 0
    assert "note: stdin cannot be read twice: only its committed records were compared" in done.err
    assert json_in(Path(f"{out}.manifest.json"))["inputs"] == [
        {"name": "stdin", "bytes": None, "sha256": None}
    ]


def test_texts_of_arguments_are_compared(tmp_path):
    out = tmp_path / "s.npy"
    good(*SET, "one", "two", "-o", out)
    assert "inputs.arguments was " in bad(*SET, "one", "ten", "-o", out, "--resume").error
    good(*SET, "one", "two", "-o", out, "--resume")


def test_the_manifest_names_the_inputs(tmp_path, texts):
    good(*SET, "-i", texts, "-o", tmp_path / "s.npy")
    made = json_in(tmp_path / "s.npy.manifest.json")
    data = texts.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert made["inputs"] == [{"name": str(texts), "bytes": len(data), "sha256": digest}]


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "null", "[]", '{"version": 4}', "1" * 9999]
)
def test_what_is_no_journal(tmp_path, texts, text):
    argv = begun(tmp_path, texts)
    (tmp_path / "s.npy.run" / "journal").write_text(text)
    assert "s.npy.run/journal: " in bad(*argv).error


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", '{"fingerprint": 1, "sha256": "x"}'])
def test_a_manifest_that_says_nothing(tmp_path, texts, text):
    out = tmp_path / "s.npy"
    good(*SET, "-i", texts, "-o", out)
    Path(f"{out}.manifest.json").write_text(text)
    done = bad(*SET, "-i", texts, "-o", out, "--resume")
    named = f"{out}.manifest.json: was not made by bertcli"
    unknown = f"{out}: already exists, but has no manifest to resume from"
    assert done.error == (unknown if "fingerprint" in text else named)


# --- precisions that cannot be ------------------------------------------------------------------

TOO_FEW = "int8 and uint8 need the range of at least two vectors, not 1"
LARGE = "a value of 100000 is too large for float16"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["int8", "float16"])
def test_a_precision_that_cannot_be_blocks_no_later_run(tmp_path, form, precision):
    file, out = tmp_path / "one.txt", tmp_path / f"s.{form}"
    file.write_text("hi\n" if precision == "int8" else "hi\nho\nhey\n")
    argv = (*SET, "-i", file, "-o", out)
    message = TOO_FEW if precision == "int8" else LARGE
    with (
        mock.patch("bertcli.runs.vector_run.EmbeddedBlock.stacked", property(large))
        if precision == "float16"
        else nullcontext()
    ):
        for more in ((), ("--resume",)):
            assert bad(*argv, "--precision", precision, *more).error == message
            assert left_in(tmp_path) == ["one.txt"]
    good(*argv, "--precision", "float32", "--resume")


def large(block):
    """Vectors of which only those of the second window are too large."""
    found = np.array(block.vectors)
    found[0, 0] = 1e5 if len(block) == 1 else 1
    return found


# --- ids ----------------------------------------------------------------------------------------


def ids_of(out):
    if out.suffix == ".npz":
        return np.load(out)["ids"].tolist()
    lines = Path(f"{out}.index.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert {tuple(row) for row in rows} == {("row", "id")}
    return [row["id"] for row in rows]


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_ids_are_kept(tmp_path, texts, form, precision):
    out = tmp_path / f"s.{form}"
    argv = (*SET, "-i", texts, "-o", out, "--precision", precision)
    good(*argv)
    assert ids_of(out) == [line["id"] for line in LINES]
    made = json_in(Path(f"{out}.manifest.json"))
    if form == "npz":
        assert sorted(path.name for path in tmp_path.glob("s.*")) == [
            "s.npz",
            "s.npz.manifest.json",
        ]
    else:
        index = Path(f"{out}.index.jsonl")
        assert made["index"] == index.name
        assert made["index_sha256"] == hashlib.sha256(index.read_bytes()).hexdigest()
        flipped(index, 9)
        assert f"{index}: was not made by bertcli" in bad(*argv, "--resume").error
        index.unlink()
        index.symlink_to("/dev/zero")  # it has no end
        assert f"{index}: was not made by bertcli" in bad(*argv, "--resume").error
        index.unlink()
        good(*SET, "hi", "-o", out, "--overwrite")  # without an id
        assert not index.exists()
        index.write_text("mine")
        out.unlink()
        for more in ([], ["--resume"], ["--overwrite"]):
            assert f"{index}: " in bad(*SET, "hi", "-o", out, *more).error
        assert index.read_text() == "mine"


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors"])
def test_ids_of_some_records_alone(tmp_path, form):
    """The others have none; also of a run that was resumed between them."""
    file = tmp_path / "mixed.jsonl"
    rows = [{}, {}, {}, {"id": 7}, {}, {"id": None}, {"id": 2.5}, {"id": "\u00e9"}]
    file.write_text(jsonl({"text": "hi", **row} for row in rows))
    expected = [None, None, None, 7, None, None, 2.5, "\u00e9"]
    if form == "npz":
        expected = ["", "", "", "7", "", "", "2.5", "\u00e9"]
    out = tmp_path / f"s.{form}"
    good(*SET, "-i", file, "-o", out)
    assert ids_of(out) == expected
    whole = contents(tmp_path)
    for path in tmp_path.glob("s.*"):
        path.unlink()
    good(*begun(tmp_path, file, form))
    assert contents(tmp_path) == whole


def test_an_output_may_lie_in_the_folder_of_its_model(tmp_path):
    folder = shutil.copytree(TINY, tmp_path / "model")
    argv = ("embed", "-q", "-m", folder, "hi", "-o", folder / "out.npy")
    good(*argv)
    whole = contents(folder)
    good(*argv, "--overwrite")
    good(*argv, "--resume")
    assert contents(folder) == whole
    again = ("embed", "-q", "-m", folder, "hi", "-o", folder / "model.safetensors", "--overwrite")
    assert "model.safetensors" in bad(*again).error
    assert contents(folder) == whole


# --- an empty input -----------------------------------------------------------------------------

SHAPES = {
    (): (32,),
    ("--dim", 8): (8,),
    ("--layers", "0,-1", "--layer-combine", "concat"): (64,),
    ("--layers", "0,-1", "--layer-combine", "stack", "--dim", 8): (2, 8),
    ("--pooling", "mean+max"): (64,),
    ("--pooling", "pooler"): (32,),
    ("--token-vectors",): (32,),
    ("--word-vectors", "mean", "--layers", "0,-1", "--layer-combine", "stack"): (2, 32),
    ("--precision", "binary"): (4,),
    ("--precision", "int8"): (32,),
    ("--precision", "float16"): (32,),
}


@pytest.mark.parametrize("more", SHAPES)
def test_an_empty_input_is_an_empty_array(tmp_path, more):
    """Of the shape that one record would have."""
    for form in ("npy", "npz", "safetensors"):
        out, one = tmp_path / f"s.{form}", tmp_path / f"one.{form}"
        good(*SET, *more, "hi", "love", "-o", one)
        good(*SET, *more, "-o", out)
        assert vectors_in(out).shape == (0, *SHAPES[more]) == (0, *vectors_in(one).shape[1:])
        assert vectors_in(out).dtype == vectors_in(one).dtype
        made = json_in(Path(f"{out}.manifest.json"))
        assert (made["rows"], made["shape"]) == (0, [0, *SHAPES[more]])
        good(*SET, *more, "-o", out, "--resume")


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_input_replaces_the_old_output(tmp_path, texts, form):
    out = tmp_path / f"s.{form}"
    good(*SET, "-i", texts, "-o", out)
    good(*SET, "-o", out, "--overwrite")
    assert sorted(path.name for path in tmp_path.glob("s.*")) == [
        out.name,
        f"{out.name}.manifest.json",
    ]
    if form != "csv":
        assert json.loads(good("inspect", "--json", out).out)["manifest"]["rows"] == 0
    if form == "jsonl":
        assert out.read_bytes() == b""
    elif form == "csv":
        assert out.read_text() == "id,n_tokens,truncated,embedding\n"
    else:
        assert vectors_in(out).shape == (0, 32)
    file = tmp_path / "bad.jsonl"
    file.write_text('{"text": 1}\n')
    done = call(*SET, "-i", file, "-o", out, "--overwrite", "--on-error", "skip")
    assert done.code == 1  # a record was skipped
    assert json_in(Path(f"{out}.manifest.json"))["counts"]["skipped"] == 1
