"""Text from outside on its way to a terminal: nothing steers it, and no text falls apart."""

import json
import os
import shutil
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from front import (
    TINY,
    call,
    good,
    json_in,
    process,
    put_json,
)
from safetensors.numpy import load_file, save_file
from terminal import at_terminal

from bertcli.io.printable import printable

EVIL = "\x1b]0;pwned\x07\x9b31m\u202e[bold]x[/bold]"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
WALES = "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"
WHOLE = {
    "family": FAMILY,
    "flag": WALES,
    "selectors": "\u2764\ufe0f \u2764\ufe0e",
    "combining": "e\u0301o\u0308\u0323 \u0928\u092e\u0938\u094d\u0924\u0947",
    "arabic": "\u0645\u0631\u062d\u0628\u0627 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "hebrew": "\u200f\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd\u200e!",
    "new emoji": "\U0001faff\U0001f8ff\U0001fbff",  # not all of them are assigned
    "private use": "\ue0b0 \uf8ff \U000f0000 \U0010fffd",
    "blanks": "a\u00a0b\u3000c",
}


def test_what_steers_hides_or_is_no_character():
    steers = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F)]
    nobody = [*range(0x2066, 0x2070), 0xD800, 0xFDD0, 0xFFF9, 0xFFFE, 0x0378, 0x1FFFE, 0x10FFFF]
    for code in [*steers, *nobody, *range(0xE0000, 0xE0080)]:
        assert printable(f"a{chr(code)}b") == "a\ufffdb", hex(code)
    assert printable(WALES[:-1]) == "\U0001f3f4" + "\ufffd" * 5  # without its end, no flag
    assert printable(f"\U0001f3f4{WALES[1:4] * 9}\U000e007f").count("\ufffd") == 28


def is_calm(text):
    """Tell whether a text has no control characters but the ends of its lines, and no override."""
    codes = [one for one in text if unicodedata.category(one) == "Cc" and one != "\n"]
    return not codes and not set("\u202e\u2028\u2066") & set(text)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Files and model folders in which every name and text is evil."""
    place = tmp_path_factory.mktemp("evil")
    (place / f"{EVIL.replace('/', '')}.foo").write_text("a")
    (place / "evil.txt").write_text(f"{EVIL}\nplain\n")
    (place / "evil.csv").write_text(f'"{EVIL}",b\n1,2\n')
    (place / "evil.jsonl").write_text(json.dumps({EVIL: 1}) + "\n")
    (place / "texts.jsonl").write_text(json.dumps({"id": EVIL, "text": f"love {EVIL}"}) + "\n")
    np.save(place / "a.npy", np.eye(3, 32, dtype=np.float32))
    shutil.copy(place / "a.npy", place / f"{EVIL.replace('/', '')}.npy")
    put_json(place / "a.npy.manifest.json", {"model": EVIL, EVIL: EVIL})
    np.savez(place / "evil.npz", **{EVIL.replace("/", ""): np.eye(2)})
    save_file({EVIL: np.eye(2), f"{EVIL}2": np.eye(2)}, place / "evil.safetensors")
    _models(place)
    return place


def _models(place):
    config = json_in(TINY / "config.json")
    changes = {
        "kind": {"model_type": EVIL},
        "architecture": {"architectures": [EVIL], "id2label": {"0": EVIL}, "position": EVIL},
        "act": {"hidden_act": EVIL},
    }
    for name, some in changes.items():
        shutil.copytree(TINY, place / name)
        put_json(place / name / "config.json", config | some)
    folder = place / "special"
    shutil.copytree(TINY, folder)
    words = (folder / "vocab.txt").read_text("utf-8").replace("[CLS]", f"[CLS{EVIL}]", 1)
    (folder / "vocab.txt").write_text(words, "utf-8")
    settings = json_in(folder / "tokenizer_config.json")
    settings |= {"cls_token": f"[CLS{EVIL}]"}
    put_json(folder / "tokenizer_config.json", settings)
    folder = place / "sentence"
    shutil.copytree(TINY, folder)
    modules = [{"idx": 0, "name": EVIL, "path": "", "type": f"a.{EVIL}"}]
    put_json(folder / "modules.json", modules)
    prompts = {"prompts": {EVIL: "x"}, "default_prompt_name": EVIL}
    put_json(folder / "config_sentence_transformers.json", prompts)
    for name in ("tensors", "shards"):
        shutil.copytree(TINY, place / name)
        (place / name / "model.safetensors").unlink()
    tensors = load_file(TINY / "model.safetensors")
    save_file(tensors | {EVIL: np.eye(2)}, place / "tensors" / "model.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, EVIL.replace("/", ""))}
    put_json(place / "shards" / "model.safetensors.index.json", index)


SOURCES = {
    "a usage error": ["tokenize", f"--{EVIL}"],
    "a value": ["tokenize", "a", "--padding", EVIL],
    "a command": [EVIL],
    "a model's name": ["tokenize", "a", "-m", f"./{EVIL}"],
    "a file's name": ["tokenize", "-i", f"{EVIL}.txt"],
    "a suffix": ["compare", f"{EVIL.replace('/', '')}.foo", "a.npy"],
    "a header": ["tokenize", "-i", "evil.csv", "--text-field", "text"],
    "JSON keys": ["tokenize", "-i", "evil.jsonl", "--text-field", "text"],
    "vectors' names": ["compare", "evil.safetensors", "a.npy"],
    "ids": ["decode", EVIL],
    "a token": ["tokenize", "--from-tokens", EVIL],
    "tables: a token": ["tokenize", "--from-tokens", EVIL, "-f", "table"],
    "tables: a text": ["tokenize", EVIL, "-f", "table", "-m", "special"],
    "tables: vectors": ["embed", EVIL, "a", "-f", "table", "-m", TINY],
    "tables: tokens": ["embed", EVIL, "-f", "table", "-m", TINY, "--token-vectors"],
    "tables: words": ["embed", EVIL, "-f", "table", "-m", TINY, "--word-vectors", "mean"],
    "tables: nearest": ["similar", EVIL, "--corpus", "texts.jsonl", "-f", "table", "-m", TINY],
    "tables: compared": ["compare", f"{EVIL.replace('/', '')}.npy", "a.npy", "-f", "table"],
    "a kind of model": ["inspect", "kind"],
    "an architecture": ["inspect", "architecture"],
    "an activation": ["embed", "a", "-m", "act"],
    "the config": ["inspect", "architecture", "--config"],
    "modules": ["inspect", "sentence"],
    "modules of embed": ["embed", "a", "-m", "sentence"],
    "a prompt": ["embed", "a", "-m", "sentence", "--prompt-name", "nope"],
    "special tokens": ["inspect", "special"],
    "tokenizer": ["inspect", "special", "--tokenizer"],
    "an attention map": ["inspect", "special", "--attention", f"a {EVIL}"],
    "tensors": ["inspect", "tensors", "--tensors"],
    "a tensor too many": ["embed", "a", "-m", "tensors", "-v"],
    "shards": ["embed", "a", "-m", "shards"],
    "shards inspected": ["inspect", "shards"],
    "a file inspected": ["inspect", f"./{EVIL.replace('/', '')}.npy"],
    "arrays": ["inspect", "./evil.safetensors"],
    "an array": ["inspect", "./evil.npz"],
    "fields": ["inspect", "./evil.jsonl"],
    "a manifest": ["inspect", "./a.npy"],
}


@pytest.mark.parametrize("argv", SOURCES.values(), ids=SOURCES)
def test_nothing_steers_the_terminal(place, monkeypatch, argv):
    monkeypatch.chdir(place)
    done = call(*argv)
    assert done.code in (0, 1, 2)
    assert is_calm(done.err), done.err
    assert is_calm(done.out) or done.out.startswith('{"'), done.out
    if "-f" in argv:
        assert "pwned" in done.out and "[bold]x" in done.out, done
    else:  # repr() and JSON escape what they quote
        shown = ("\ufffd", "\\x1b", "\\u001b")
        assert any(one in done.err + done.out for one in shown) or '{"' in done.out, done


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_tables_keep_text_whole(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("c.txt").write_text(f"{text}\n", "utf-8")
    tiny = ("-m", TINY, "-f", "table")
    for argv in (
        ["tokenize", text, *tiny],
        ["tokenize", "--from-tokens", text.replace(" ", ""), *tiny, "-q"],
        ["embed", text, *tiny, "--word-vectors", "mean", "-q"],
        ["embed", text, "a", *tiny, "-q"],
        ["similar", text, "--corpus", "c.txt", *tiny, "-q"],
    ):
        wanted = text.replace(" ", "") if "--from-tokens" in argv else text
        shown = good(*argv, COLUMNS="200").out
        assert wanted in shown or all(word in shown for word in wanted.split()), argv


def test_a_pipe_gets_the_bytes_and_a_terminal_does_not(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    words = (folder / "vocab.txt").read_text("utf-8").splitlines()
    words[10] = "\x1b]0;a\x9b"
    (folder / "vocab.txt").write_text("\n".join(words), "utf-8")
    assert good("decode", "10", "-m", folder).out == "\x1b]0;a\x9b\n"
    assert at_terminal("decode", "10", "-m", folder) == (0, "\ufffd]0;a\ufffd\n".encode())
    code, seen = at_terminal("decode", "10", "-m", folder, "--as", "tokens", "-f", "jsonl")
    assert code == 0 and is_calm(seen.decode())


@pytest.mark.parametrize(
    "argv",
    [
        ["tokenize", "caf\u00e9 \u2764", "-f", "table"],
        ["tokenize", "\u2764", "--padding", "\u2764"],
        ["tokenize", "\u2764", "-m", "./\u2764"],
        ["inspect", TINY],
        ["inspect", "-m", TINY, "--attention", "\u2764"],
        ["inspect", "\u2764"],
        ["--help"],
    ],
)
def test_a_stream_that_knows_ascii_alone(argv):
    done = process(*argv, env={"PYTHONIOENCODING": "ascii"})
    assert "Traceback" not in done.err and done.code in (0, 1, 2)
    assert (done.out + done.err).isascii()


def test_a_name_that_is_no_text(tmp_path):
    if sys.platform == "darwin":
        pytest.skip("file names are text there")
    name = os.fsdecode(b"\xff\x1b.txt")
    done = call("tokenize", "-i", tmp_path / name)
    assert (done.code, done.error) == (1, f"{tmp_path}/\ufffd\ufffd.txt: file not found")
