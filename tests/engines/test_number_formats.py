"""The CPU engine in bfloat16: near, the same bits in any batch, and told; 8-bit integers."""

import random
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from front import (
    TINY,
    bad,
    call,
    good,
    json_in,
)
from hostile import REAL

from bertcli.engines import openvino_engine

ROOT = Path(__file__).parents[2]
AUTO = ("--backend", "auto")
INT8 = ("--backend", "openvino", "--dtype", "int8")
BFLOAT16 = ("--backend", "openvino", "--dtype", "bfloat16")
EMBED = ("embed", "-q", "-m", TINY, "I love NLP!")
# worst and mean cosine to float32 over English phrases; of single words, some are further away
NEAR = 0.999, 0.9999

pytestmark = [
    pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino"),
]


def lines(count, most):
    """English phrases, the same in every year, and text in many scripts."""
    dice, words = random.Random(15), (ROOT / "LICENSE").read_text("utf-8").split()
    starts = [dice.randrange(len(words)) for _ in range(count)]
    return [*(" ".join(words[at : at + dice.randint(2, most)]) for at in starts), *REAL]


def vectors(tmp_path, texts, *options):
    file, out = tmp_path / "texts.txt", tmp_path / "out.npy"
    file.write_text("".join(f"{line}\n" for line in texts), "utf-8")
    good("embed", "-q", "-i", file, "-o", out, "--overwrite", *options)
    return np.load(out)


def options_in(out):
    return json_in(Path(f"{out}.manifest.json"))["fingerprint"]["options"]


@pytest.mark.parametrize("model", ["tiny", pytest.param("default", marks=pytest.mark.slow)])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_near_and_have_the_same_bits_in_any_batch(tmp_path, model, pooling):
    where = ("-m", TINY) if model == "tiny" else ()
    texts = [*lines(60 if where else 20, 40), "a", "a", "b"]
    exact = (*where, "--backend", "openvino", "--pooling", pooling, "--normalize")
    exact = (*exact, "--on-truncate", "ignore")
    chosen = (*exact, *BFLOAT16)
    whole = vectors(tmp_path, texts, *chosen)
    cosines = (whole * vectors(tmp_path, texts, *exact)).sum(1)
    worst, mean = NEAR if pooling == "mean" else (0.97, 0.98)
    english = np.array([text.isascii() for text in texts])
    assert cosines[english].min() >= worst and cosines.mean() >= mean
    assert cosines.min() >= worst - 0.005  # a vocabulary of English spells other scripts
    order = random.Random(2).sample(range(len(texts)), len(texts))
    for options in (("--window", 1), ("--batch-tokens", 40), ("--threads", 1), ("--threads", 3)):
        again = vectors(tmp_path, [texts[at] for at in order], *chosen, *options)
        assert np.array_equal(again, whole[order]), options


def test_another_format_is_another_run(tmp_path):
    out = tmp_path / "out.npy"
    good(*EMBED, "-o", out, "--backend", "torch", "--dtype", "bfloat16")
    assert options_in(out)["dtype"] == "bfloat16"
    done = bad(*EMBED, "-o", out, "--backend", "torch", "--resume")
    assert 'options.dtype was "bfloat16", now "float32"' in done.error


@pytest.mark.parametrize("backend", [AUTO, INT8[:2]])
def test_8_bits_are_of_folders_that_have_them(backend):
    done = bad(*EMBED, *backend, "--dtype", "int8", code=2)
    assert done.error == f"{TINY}: no 8-bit model, which --dtype int8 runs"
    assert done.hint == "bertcli export -m MODEL -o DIR --dtype int8 makes one; then -m DIR"


@pytest.mark.parametrize(
    ("options", "reason"),
    [(("--backend", "torch"), "--backend torch"), ((*AUTO, "--device", "cuda"), "--device cuda")],
)
def test_8_bits_are_told_to_be_of_openvino_alone(options, reason):
    done = bad(*EMBED, "--dtype", "int8", *options, code=2)
    assert f"--dtype int8 is not possible: OpenVINO computes it, on a CPU ({reason})" == done.error
    assert done.hint == "leave that out, or use --dtype float32"


def test_8_bits_without_openvino_are_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    done = bad(*EMBED, *AUTO, "--dtype", "int8", code=2)
    assert "(OpenVINO is not installed)" in done.error
    assert '"bertcli[int8]' in done.hint and done.hint.endswith(", or use --dtype float32")


def test_without_bfloat16_arithmetic_it_is_float32_and_warned_about(tmp_path, monkeypatch):
    monkeypatch.setattr(openvino_engine, "has_bfloat16", lambda: False)
    out = tmp_path / "out.npy"
    done = call(*EMBED[:1], *EMBED[2:], *BFLOAT16, "-o", out)
    assert done.err.count("this CPU has no bfloat16 arithmetic: computing in float32") == 1
    assert options_in(out)["dtype"] == "float32"
