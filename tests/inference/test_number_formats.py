"""The CPU engine in 8-bit integers and bfloat16: near, the same bits in any batch, and told."""

import json
import random
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from front import bad, call, good
from hostile import REAL

from bertcli.inference import compiled

ROOT = Path(__file__).parents[2]
TINY = ROOT / "samples" / "tiny-bert"
AUTO = ("--backend", "auto")
INT8 = ("--backend", "openvino", "--dtype", "int8")
BFLOAT16 = ("--backend", "openvino", "--dtype", "bfloat16")
EMBED = ("embed", "-q", "-m", TINY, "I love NLP!")
# worst and mean cosine to float32 over English phrases; of single words, some are further away
NEAR = {"int8": (0.995, 0.998), "bfloat16": (0.999, 0.9999)}

pytestmark = [
    pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino"),
    pytest.mark.skipif(find_spec("nncf") is None, reason="needs nncf"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


def lines(count, most):
    """English phrases, the same in every year, and text in many scripts."""
    dice, words = random.Random(15), (ROOT / "LICENSE").read_text("utf-8").split()
    starts = [dice.randrange(len(words)) for _ in range(count)]
    return [*(" ".join(words[at : at + dice.randint(2, most)]) for at in starts), *REAL]


def vectors(tmp_path, cache, texts, *options):
    file, out = tmp_path / "texts.txt", tmp_path / "out.npy"
    file.write_text("".join(f"{line}\n" for line in texts), "utf-8")
    good("embed", "-q", "-i", file, "-o", out, "--overwrite", *options, BERTCLI_CACHE=cache)
    return np.load(out)


def options_in(out):
    return json.loads(Path(f"{out}.manifest.json").read_text())["fingerprint"]["options"]


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("model", ["tiny", pytest.param("default", marks=pytest.mark.slow)])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_near_and_have_the_same_bits_in_any_batch(
    tmp_path, cache, model, pooling, dtype
):
    where = ("-m", TINY) if model == "tiny" else ()
    texts = [*lines(60 if model == "tiny" else 600, 40), "a", "a", "b"]
    exact = (*where, "--backend", "openvino", "--pooling", pooling, "--normalize")
    exact = (*exact, "--on-truncate", "ignore")
    chosen = (*exact, "--dtype", dtype)
    whole = vectors(tmp_path, cache, texts, *chosen)
    cosines = (whole * vectors(tmp_path, cache, texts, *exact)).sum(1)
    worst, mean = NEAR[dtype] if pooling == "mean" else (0.97, 0.98)
    english = np.array([text.isascii() for text in texts])
    assert cosines[english].min() >= worst and cosines.mean() >= mean
    assert cosines.min() >= worst - 0.005  # a vocabulary of English spells other scripts
    order = random.Random(2).sample(range(len(texts)), len(texts))
    for options in (("--window", 1), ("--batch-tokens", 40), ("--threads", 1), ("--threads", 3)):
        again = vectors(tmp_path, cache, [texts[at] for at in order], *chosen, *options)
        assert np.array_equal(again, whole[order]), options


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_the_accuracy_is_kept_and_told_and_another_format_is_another_run(tmp_path, cache, dtype):
    out = tmp_path / "out.npy"
    chosen = (*EMBED, "-o", out, "--backend", "openvino", "--dtype", dtype)
    good(*chosen, BERTCLI_CACHE=cache)
    told = options_in(out)
    assert told["dtype"] == dtype and 0.9 < told["accuracy"]["worst_cosine"] <= 1
    assert ("nncf" in told["accuracy"]) == (dtype == "int8")
    heads = [path.read_bytes().split(b"\n", 1)[0] for path in Path(cache).glob("*.model")]
    assert told["accuracy"] in [json.loads(head)["accuracy"] for head in heads]
    done = bad(*EMBED, "-o", out, "--backend", "openvino", "--resume", BERTCLI_CACHE=cache)
    assert f'options.dtype was "{dtype}", now "float32"' in done.error


def test_made_twice_an_8_bit_model_is_the_same(tmp_path):
    made = [good(*EMBED, *INT8, BERTCLI_CACHE=str(tmp_path / name)).stdout for name in "ab"]
    assert made[0] == made[1]
    assert "all tokens, int8" in call("models", BERTCLI_CACHE=str(tmp_path / "a")).out


def test_nncf_is_needed_only_where_an_8_bit_model_is_made(tmp_path, cache, monkeypatch):
    expected = good(*EMBED, *INT8, BERTCLI_CACHE=cache)
    monkeypatch.setitem(sys.modules, "nncf", None)
    assert good(*EMBED, *INT8, BERTCLI_CACHE=cache).stdout == expected.stdout
    done = bad(*EMBED, *INT8, BERTCLI_CACHE=str(tmp_path))
    assert done.error.startswith("--dtype int8 needs the package nncf")
    assert "pip install 'bertcli[int8]'" in done.hint


@pytest.mark.parametrize(
    ("options", "reason"),
    [(("--backend", "torch"), "--backend torch"), ((*AUTO, "--device", "cuda"), "--device cuda")],
)
def test_8_bits_are_told_to_be_of_openvino_alone(cache, options, reason):
    done = bad(*EMBED, "--dtype", "int8", *options, code=2, BERTCLI_CACHE=cache)
    assert f"--dtype int8 is not possible: OpenVINO computes it, on a CPU ({reason})" == done.error
    assert done.hint == "leave that out, or use --dtype float32"


def test_8_bits_without_openvino_are_one_line(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    done = bad(*EMBED, *AUTO, "--dtype", "int8", code=2, BERTCLI_CACHE=cache)
    assert "(OpenVINO is not installed)" in done.error
    assert done.hint == "pip install 'bertcli[int8]', or use --dtype float32"


def test_auto_computes_8_bits_by_openvino(cache):
    assert (
        good(*EMBED, *AUTO, "--dtype", "int8", BERTCLI_CACHE=cache).stdout
        == good(*EMBED, *INT8, BERTCLI_CACHE=cache).stdout
    )


def test_without_bfloat16_arithmetic_it_is_float32_and_warned_about(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(compiled, "has_bfloat16", lambda: False)
    out = tmp_path / "out.npy"
    done = call(*EMBED[:1], *EMBED[2:], *BFLOAT16, "-o", out, BERTCLI_CACHE=cache)
    assert done.err.count("this CPU has no bfloat16 arithmetic: computing in float32") == 1
    assert options_in(out)["dtype"] == "float32"


def test_weights_that_cannot_be_rounded_are_told(tmp_path, cache):
    from safetensors.numpy import load_file, save_file

    for path in TINY.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = dict(load_file(TINY / "model.safetensors"))
    name = next(name for name in weights if name.endswith("layer.0.output.dense.weight"))
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    done = bad(*EMBED[:2], "-m", tmp_path, "hi", *INT8, BERTCLI_CACHE=cache)
    assert (
        "--dtype int8 is not possible: weights, or what they make of texts, are NaN" in done.error
    )
