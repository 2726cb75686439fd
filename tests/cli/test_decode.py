"""`bertcli decode`: every option at least once, every format from every source."""

import gzip
import shutil
import zipfile
from unittest import mock

import numpy as np
import pytest
from front import (
    PACKAGE,
    bad,
    call,
    good,
    json_in,
    jsonl,
    put_json,
    shell,
)
from pyarrow import parquet, table
from safetensors.numpy import save_file

LOVE, SHOWN = [101, 1045, 2293, 17953, 2361, 999, 102], "[CLS] i love nlp! [SEP]\n"
ROWS = [[101, 1037, 102], [101, 1038, 102]]
LINES = "[CLS] a [SEP]\n[CLS] b [SEP]\n"


@pytest.mark.parametrize(
    "text",
    [
        "101 1037 102\n101 1038 102\n",
        "101,1037,102\n101, 1038, 102\n",
        "[101,1037,102]\r\n[101, 1038, 102]\r\n",
        '{"input_ids":[101,1037,102]}\n{"input_ids":[101,1038,102],"x":1}\n',
        "101 1037 102\n[101,1038,102]",
    ],
)
@pytest.mark.parametrize("source", ["stdin", "dash", "file", "gz"])
def test_lines(tmp_path, text, source):
    (tmp_path / "ids.txt").write_text(text, newline="")
    (tmp_path / "ids.txt.gz").write_bytes(gzip.compress(text.encode()))
    given = {"stdin": [], "dash": ["-i", "-"], "file": ["-i", tmp_path / "ids.txt"]}
    argv = given.get(source, ["-i", tmp_path / "ids.txt.gz"])
    assert good("decode", *argv, stdin=text).out == LINES


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors", "parquet", "jsonl", "csv", "tsv"])
def test_files(tmp_path, form):
    file = tmp_path / f"ids.{form}"
    match form:
        case "npy":
            np.save(file, np.array(ROWS))
        case "npz":
            np.savez(file, input_ids=np.array(ROWS), attention_mask=np.ones((2, 3)))
        case "safetensors":
            save_file({"input_ids": np.array(ROWS)}, file)
        case "parquet":
            parquet.write_table(table({"input_ids": ROWS, "label": ["x", "y"]}), file)
        case "jsonl":
            file.write_text(jsonl({"input_ids": row} for row in ROWS))
        case "csv":
            file.write_text("".join(["input_ids\n", *(f'"{row}"\n' for row in ROWS)]))
        case "tsv":
            file.write_text("".join(["input_ids\n", *(f"{row}\n" for row in ROWS)]))
    assert good("decode", "-i", file).out == LINES
    other = tmp_path / "ids.dat"
    file.rename(other)
    assert good("decode", "-i", other, "--input-format", form).out == LINES


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "npy", "npz", "safetensors", "parquet"])
def test_what_tokenize_writes_into_a_pipe(tmp_path, form):
    read = "" if form == "jsonl" else f"--input-format {form}"
    write = f"bertcli tokenize 'I love NLP!' a --padding longest -f {form}"
    done = shell(f"{write} | bertcli decode {read} --skip-special-tokens", cwd=tmp_path)
    assert done == (0, b"i love nlp!\na\n", "")


@pytest.mark.parametrize("form", ["auto", "txt", "jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("source", ["argument", "file", "stdin"])
def test_format_and_source(tmp_path, form, source):
    stdin = "101 1037 102\n" if source == "stdin" else ""
    (tmp_path / "ids.txt").write_text("101 1037 102\n")
    given = {"argument": [101, 1037, 102], "file": ["-i", tmp_path / "ids.txt"], "stdin": []}
    done = good("decode", "-f", form, *given[source], stdin=stdin)
    if form == "parquet":
        (tmp_path / "x.parquet").write_bytes(done.stdout)
        assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == [{"text": "[CLS] a [SEP]"}]
        return
    assert done.out == {
        "jsonl": '{"text":"[CLS] a [SEP]"}\n',
        "csv": "text\n[CLS] a [SEP]\n",
        "tsv": "text\n[CLS] a [SEP]\n",
    }.get(form, "[CLS] a [SEP]\n")


def test_arguments_are_one_list():
    assert good("decode", "101", "1037", "102").out == "[CLS] a [SEP]\n"
    assert good("decode", "101,1037", "102").out == "[CLS] a [SEP]\n"
    assert good("decode", "[101, 1037, 102]").out == "[CLS] a [SEP]\n"


def test_tokens():
    assert good("decode", "--as", "tokens", *LOVE).out == "[CLS] i love nl ##p ! [SEP]\n"
    done = good("decode", "--as", "tokens", "--skip-special-tokens", "-f", "jsonl", *LOVE)
    assert done.rows == [{"tokens": ["i", "love", "nl", "##p", "!"]}]


def test_clean_up_is_as_the_folder_says_unless_asked(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(PACKAGE / "samples" / "tiny-bert", folder)
    settings = json_in(folder / "tokenizer_config.json")
    ids = good("tokenize", "a ' s , b", "-m", folder).ids[0]
    shown = {"plain": "a ' s , b", "usual": "a ' s, b", "whole": "a's, b"}
    for said, default in ((None, "usual"), (False, "usual"), (True, "whole")):
        more = {} if said is None else {"clean_up_tokenization_spaces": said}
        put_json(folder / "tokenizer_config.json", settings | more)
        for option, wanted in (
            ([], default),
            (["--clean-up"], "whole"),
            (["--no-clean-up"], "plain"),
        ):
            found = good("decode", *ids, *option, "--skip-special-tokens", "-m", folder).out
            assert found == f"{shown[wanted]}\n", (said, option)


def test_ids_and_fields_are_carried(tmp_path):
    file = tmp_path / "ids.jsonl"
    file.write_text('{"id":"r1","input_ids":[1037],"label":"x","rest":[1]}\n')
    assert good("decode", "-i", file, "-f", "jsonl").rows == [{"id": "r1", "text": "a"}]
    kept = good("decode", "-i", file, "-f", "jsonl", "--keep-fields", "label").rows
    assert kept == [{"id": "r1", "text": "a", "label": "x"}]
    kept = good("decode", "-i", file, "-f", "jsonl", "--keep-fields").rows[0]
    assert kept["rest"] == [1] and "input_ids" not in kept
    assert "field 'nope' not found" in bad("decode", "-i", file, "--keep-fields", "nope").error


@pytest.mark.parametrize("index", [30522, 99999, 2**32, 2**70])
def test_an_id_that_is_not_there(tmp_path, index):
    file = tmp_path / "ids.txt"
    file.write_text(f"101 102\n101 {index}\n")
    failed = bad("decode", "-i", file, "-o", tmp_path / "x.txt")
    assert failed.error == f"{file}:2: id {index} is not in the vocabulary of 30522 tokens"
    assert "--model" in failed.hint
    assert not (tmp_path / "x.txt").exists()
    done = call("decode", "-i", file, "--on-error", "skip")
    assert (done.code, done.out) == (1, "[CLS] [SEP]\n")
    assert done.err.splitlines()[-1] == "warning: 1 record was skipped"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one two", "'one two' is not a list of token ids"),
        ("1.5", "'1.5' is not a list of token ids"),
        ("[1, true]", "expected a list of integers"),
        ('["1"]', "expected a list of integers"),
        ('{"ids":[1]}', "field 'input_ids' not found"),
        ('{"input_ids":7}', "expected a list of integers"),
        ("{", "not valid JSON"),
    ],
)
def test_what_is_no_list_of_ids(line, message):
    failed = bad("decode", stdin=f"101\n{line}\n")
    assert failed.error.startswith("stdin:2: ") and message in failed.error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.npy", b"not an array", "not a readable npy file"),
        ("x.npz", b"not an archive", "not a readable npz file"),
        ("x.safetensors", b"\0" * 20, "not a readable safetensors file"),
        ("x.parquet", b"PAR1", "not a readable Parquet file"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert message in bad("decode", "-i", tmp_path / name).error


def test_arrays_of_something_else(tmp_path):
    np.save(tmp_path / "f.npy", np.ones((2, 2)))
    assert "float64 of shape (2, 2)" in bad("decode", "-i", tmp_path / "f.npy").error
    np.savez(tmp_path / "two.npz", a=np.ones(1), b=np.ones(1))
    failed = bad("decode", "-i", tmp_path / "two.npz")
    assert failed.hint == "available: a, b"
    with zipfile.ZipFile(tmp_path / "torch.npz", "w") as archive:
        archive.writestr("archive/data.pkl", b"N.")
    assert "array 'input_ids' not found" in bad("decode", "-i", tmp_path / "torch.npz").error


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["101", "-f", "npy"], "this command cannot write npy"),
        (["101", "-f", "table"], "this command cannot write table"),
        (["101", "-i", "f"], "TEXT cannot be combined with --input"),
    ],
)
def test_contradictions(argv, message):
    assert message in bad("decode", *argv, code=2).error


def test_empty_input_and_output_file(tmp_path):
    done = call("decode", stdin="")
    assert (done.code, done.out, done.err) == (0, "", "note: no records: the input is empty\n")
    good("decode", "101", "-o", tmp_path / "x.txt")
    assert (tmp_path / "x.txt").read_text() == "[CLS]\n"
    assert "already exists" in bad("decode", "101", "-o", tmp_path / "x.txt").error
    good("decode", "102", "-o", tmp_path / "x.txt", "--overwrite", "-q")
    assert (tmp_path / "x.txt").read_text() == "[SEP]\n"


def test_an_empty_list_is_an_empty_text():
    assert good("decode", stdin="[]\n\n").out == "\n\n"


def test_a_dash_is_stdout(tmp_path):
    done = shell("bertcli decode 101 102 -o - -f txt; ls", cwd=tmp_path)
    assert done == (0, b"[CLS] [SEP]\n", "")


def test_help_into_a_pipe_that_closes(tmp_path):
    done = shell("bertcli decode --help | head -1; echo ${PIPESTATUS[0]}", cwd=tmp_path)
    assert (done.code, done.out.split()[-1], done.err) == (0, "0", "")


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (OSError(28, "No space left on device"), "system error: No space left on device"),
        (OSError("odd"), "system error: odd"),
        (TimeoutError(), "system error: TimeoutError"),
        (OSError(5, "Input/output error", "a.txt"), "a.txt: Input/output error"),
        (OSError(18, "Cross-device link", "a", None, "b"), "a to b: Cross-device link"),
        (OSError(9, "Bad file descriptor", 7), "file 7: Bad file descriptor"),
    ],
)
def test_what_the_system_refuses_is_not_blamed_on_stdout(failed, said):
    with mock.patch("bertcli.cli.options.common.find_model", side_effect=failed):
        assert bad("decode", "101").error == said
