"""The same bits, whatever a text stands beside: a promise of README, here of torch."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from front import call
from hostile import REAL
from model_reference import randomise, tiny

from bertcli.embedding.pooling import Pooling
from bertcli.inference.encoder import Encoder
from bertcli.inference.runner import Reading, Tokens, result_of
from bertcli.models.bert import BertModel
from bertcli.models.surgery import prepare

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
        fixed = ("-q", "--backend", "torch", "-i", file, "-o", out, "--dtype", *more)
        assert call("embed", *fixed, *settings).code == 0
        return np.load(out)

    order = list(range(len(given)))
    expected = vectors("expected", order, "--threads", 2)
    for name, settings in tried.items():
        if name == "shuffled":
            random.Random(1).shuffle(order)
        assert np.array_equal(vectors(name, order, *settings), expected[order]), name


@pytest.mark.parametrize("kernel", ["packed", "padded"])
def test_the_manifest_says_whether_bits_depend_on_the_batch(tmp_path, monkeypatch, kernel):
    """A padded batch, which a GPU has, is one in which they do."""
    monkeypatch.setattr(Encoder, "kernel", kernel)
    done = call("embed", "-v", "--device", "cpu", "a", "b c", "-o", tmp_path / "o.npy")
    manifest = json.loads((tmp_path / "o.npy.manifest.json").read_text())
    assert manifest["same_bits"] is (kernel == "packed")
    assert ("the last bits of a vector depend" in done.err) is (kernel == "padded")


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "silu", "mish", "quick_gelu"])
def test_widths_that_vector_units_do_not_divide_have_the_same_bits(act, threads):
    model = randomise(BertModel(tiny(hidden_act=act, intermediate_size=48)))
    prepare(model, torch.device("cpu"))
    encoder = Encoder(model, Reading(), 4096)
    ids = [[7 * at % 90 + length for at in range(length)] for length in (1, 2, 3, 5, 9, 12)]
    together, *alone = (
        result_of(encoder.run(Tokens.listed(some), Pooling(("mean",))))
        for some in (ids, *([one] for one in ids))
    )
    assert np.array_equal(together, np.concatenate(alone))
