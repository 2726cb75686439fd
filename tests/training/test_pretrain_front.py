"""From text to a model that the other commands take, as the README shows it."""

import pytest
import transformers
from front import PACKAGE, call, good
from pretrain_folders import CONFIG, config_file
from task_models import agree

TEXTS = ["The fox [MASK] the dog.", "a [MASK] and a [MASK]"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A vocabulary, instances and a short run, of which only the model is left to look at."""
    place = tmp_path_factory.mktemp("front")
    lines = (PACKAGE / "samples" / "texts.txt").read_text("utf-8").splitlines()
    documents = "\n\n".join("\n".join(lines[at : at + 3]) for at in range(0, len(lines), 3))
    run = ["--config", config_file(place / "config.json"), "--steps", 30, "--batch-size", 8]
    run += ["--learning-rate", 1e-2, "--device", "cpu"]
    steps = [
        ["vocab", "-", "--size", 260, "-o", place / "tokenizer"],
        ["prepare", "-", "-m", place / "tokenizer", "--max-length", 24, "-o", place / "instances"],
        ["run", place / "instances", *run, "-o", place / "model"],
    ]
    for argv in steps:
        done = call("pretrain", *argv, "-q", stdin=documents)
        assert (done.code, done.out) == (0, ""), done
    return place / "model"


@pytest.mark.parity
def test_fill_mask_takes_a_trained_model(trained):
    theirs = transformers.pipeline(
        "fill-mask",
        model=transformers.BertForMaskedLM.from_pretrained(trained),
        tokenizer=transformers.AutoTokenizer.from_pretrained(trained),
    )
    for text, row in zip(TEXTS, good("fill-mask", "-m", trained, *TEXTS).rows, strict=True):
        masks = theirs(text) if text.count("[MASK]") > 1 else [theirs(text)]
        expected = [{"mask": mask, **one} for mask, found in enumerate(masks) for one in found]
        agree(row["predictions"], expected, text)


def test_fill_mask_of_a_trained_model_in_fewer_bits(trained):
    """The decoder is tied to the word embeddings, whatever the layers are made of."""
    argv = ["fill-mask", "-m", trained, *TEXTS, "-q", "--device", "cpu"]
    argv += ["--targets", "the,fox,dog,a", "--backend", "torch"]
    for row, exact in zip(call(*argv, "--dtype", "bfloat16").rows, good(*argv).rows, strict=True):
        scores = [
            {(one["mask"], one["token"]): one["score"] for one in found["predictions"]}
            for found in (row, exact)
        ]
        assert scores[0] == pytest.approx(scores[1], rel=0.1) and scores[0] != scores[1]


def test_other_commands_take_a_trained_model(trained):
    (row,) = call("embed", "-m", trained, "I love NLP!", "-q").rows
    assert len(row["embedding"]) == CONFIG["hidden_size"]
    (pair,) = good("next-sentence", "-m", trained, "a fox", "a dog").rows
    assert sum(pair.values()) == pytest.approx(1)
    assert "masked language model, next sentence" in good("inspect", trained).out
    assert all(
        line[:2] in ("ok", "--") for line in good("inspect", trained, "--verify").out.splitlines()
    )
