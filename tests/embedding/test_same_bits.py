"""The same bits, whatever a text stands beside: a promise of the CPU engine."""

import random
from pathlib import Path

import numpy as np
import pytest
from front import (
    call,
    json_in,
)
from hostile import REAL

ROOT = Path(__file__).parents[2]
WORDS = [*range(14), 20, 25, 26, 27, 40, 70, 110]  # 2 to 256 tokens, with those of `REAL`
SETTINGS = {
    "alone": ("--window", 1, "--threads", 1),
    "small batches": ("--batch-tokens", 300, "--window", 23, "--threads", 2),
    "one batch": ("--batch-tokens", 1_000_000, "--threads", 3),
    "shuffled": ("--batch-tokens", 700, "--threads", 3),
}


def texts():
    """Texts of real words of these lengths, in several scripts, some twice."""
    dice = random.Random(8)
    known = " ".join([(ROOT / "README.md").read_text("utf-8"), *REAL]).split()
    found = [" ".join(dice.choices(known, k=length)) for length in WORDS]
    found += [*REAL, found[5], found[16]]
    dice.shuffle(found)
    return found


FEW = {name: SETTINGS[name] for name in ("alone", "shuffled")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "tried"),
    [(("float32",), SETTINGS), (("float32", "--pooling", "cls"), FEW)],
)
def test_a_vector_depends_on_its_text_alone(tmp_path, more, tried):
    given = texts()

    def vectors(name, order, *settings):
        file, out = tmp_path / "texts.txt", tmp_path / f"{name}.npy"
        file.write_text("".join(f"{given[at]}\n" for at in order))
        fixed = ("-q", "--backend", "openvino", "-i", file, "-o", out, "--dtype", *more)
        assert call("embed", *fixed, *settings).code == 0
        return np.load(out)

    order = list(range(len(given)))
    expected = vectors("expected", order, "--threads", 2)
    for name, settings in tried.items():
        if name == "shuffled":
            random.Random(1).shuffle(order)
        assert np.array_equal(vectors(name, order, *settings), expected[order]), name


@pytest.mark.parametrize("backend", ["openvino", "torch"])
def test_the_manifest_says_whether_bits_depend_on_the_batch(tmp_path, backend):
    given = ("-v", "--device", "cpu", "--backend", backend)
    done = call("embed", *given, "a", "b c", "-o", tmp_path / "o.npy")
    manifest = json_in(tmp_path / "o.npy.manifest.json")
    assert manifest["same_bits"] is (backend == "openvino")
    assert ("the last bits of a vector depend" in done.err) is (backend == "torch")
