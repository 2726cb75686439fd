"""The CPU engine with a model of each family: the numbers of torch, the same bits in any batch."""

import random
from importlib.util import find_spec

import numpy as np
import pytest
from family_models import ROWS
from front import good
from model_reference import randomise
from task_models import SIZES, tokenizer

from bertcli.families.registry import FAMILIES
from bertcli.inference import compiling
from bertcli.inference.openvino import has_bfloat16

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")

WORDS = ["a", "no", "NLP", "bank", "river", "[PAD]", "[MASK]", "Ouagadougou", "."]
TEXTS = [" ".join(random.Random(at).choices(WORDS, k=1 + 5 * at % 23)) for at in range(12)]
ORDER = random.Random(1).sample(range(len(TEXTS)), len(TEXTS))
FORMATS = [  # worst cosine to float32; weights are random, and wide: no real model is as far
    ("float32", 1 - 1e-6),
    ("bfloat16", 0.99),
    pytest.param("int8", 0.9, marks=pytest.mark.skipif(not find_spec("nncf"), reason="needs nncf")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make folders of transformers' models, each once."""
    import transformers

    root = tmp_path_factory.mktemp("families")

    def made(row):
        path = root / row.model_type
        if not path.exists():
            page = FAMILIES[row.model_type]
            said = {page.key(key): size for key, size in SIZES.items()}
            config = transformers.AutoConfig.for_model(row.model_type, **said, pad_token_id=0)
            randomise(getattr(transformers, f"{row.prefix}Model")(config)).save_pretrained(path)
            tokenizer().save_pretrained(path)
        return path

    return made


@pytest.mark.parametrize(("dtype", "near"), FORMATS)
@pytest.mark.parametrize("row", [row for row in ROWS if not row.alike], ids=lambda it: it.prefix)
def test_vectors_are_those_of_torch_and_have_the_same_bits_in_any_batch(
    tmp_path, row, folder, dtype, near, monkeypatch
):
    some = compiling.calibration_texts  # a few of them are enough for 8 bits of such a model
    monkeypatch.setattr(compiling, "calibration_texts", lambda *given: some(*given)[::12])
    if dtype == "bfloat16" and not has_bfloat16():
        pytest.skip("this CPU has no bfloat16 arithmetic")

    def vectors(texts, *options):
        out = tmp_path / "out.npy"
        chosen = ("-m", folder(row), "--on-truncate", "ignore", "--overwrite", *options)
        good("embed", "-q", *texts, "-o", out, *chosen, BERTCLI_CACHE=str(tmp_path / "cache"))
        return np.load(out)

    compiled = ("--backend", "openvino", "--dtype", dtype)
    for pooling in ("mean", "cls"):
        chosen = ("--pooling", pooling, "--normalize")
        torchs, ours = vectors(TEXTS, *chosen), vectors(TEXTS, *chosen, *compiled)
        assert (ours * torchs).sum(1).min() >= near
        if dtype == "float32":
            np.testing.assert_allclose(ours, torchs, atol=1e-5)
        shuffled = vectors([TEXTS[at] for at in ORDER], *chosen, *compiled, "--batch-tokens", 40)
        assert np.array_equal(shuffled, ours[ORDER])
