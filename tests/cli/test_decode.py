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


def test_empty_input_and_output_file(tmp_path):
    done = call("decode", stdin="")
    assert (done.code, done.out, done.err) == (0, "", "note: no records: the input is empty\n")
    good("decode", "101", "-o", tmp_path / "x.txt")
    assert (tmp_path / "x.txt").read_text() == "[CLS]\n"
    assert "already exists" in bad("decode", "101", "-o", tmp_path / "x.txt").error
    good("decode", "102", "-o", tmp_path / "x.txt", "--overwrite", "-q")
    assert (tmp_path / "x.txt").read_text() == "[SEP]\n"


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
