"""`bertcli train` on pairs: the losses of sentence-transformers, and vectors that are better."""

import warnings

import pytest
import torch
from example_files import belonging, scored, written
from front import (
    call,
    good,
    json_in,
)
from model_reference import close
from train_steps import argv, opened, standing

from bertcli.training.fine_tuning import pair_task
from bertcli.training.loop import rows_of_step

KINDS = {
    "contrast": (lambda count: belonging(count), "MultipleNegativesRankingLoss"),
    "negatives": (lambda count: belonging(count, negatives=True), "MultipleNegativesRankingLoss"),
    "scores": (lambda count: scored(count), "CoSENTLoss"),
}


def their_step(base, rows, loss_name):
    """Loss and gradients of sentence-transformers, with the mean of the last states."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses, modules

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bert = modules.Transformer(str(base))
        model = SentenceTransformer(modules=[bert, modules.Pooling(32, "mean")], device="cpu")
        columns = [key for key in rows[0] if key != "score"]
        features = [model.tokenize([row[key] for row in rows]) for key in columns]
        loss = getattr(losses, loss_name)(model)(
            features, torch.tensor([row.get("score", 0.0) for row in rows])
        )
    loss.backward()
    named = bert.named_parameters()
    return loss.item(), {name.split("model.")[-1]: one.grad for name, one in named}


def pair_training(rows, base, path, parts=1):
    """The task of pairs, ready to step without moving any weight."""
    return standing(opened(pair_task, rows, path, base, 12, task="embed"), parts)


@pytest.mark.parity
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_that_of_sentence_transformers(kind, base, tmp_path):
    make, loss_name = KINDS[kind]
    rows = make(24)
    training = pair_training(rows, base, tmp_path)
    step = training.step(0)
    chosen = [rows[at] for at in rows_of_step(training.rows, 0, 12, 0)]
    loss, gradients = their_step(base, chosen, loss_name)
    close(step["loss"], loss)
    for name, weight in training.model.named_parameters():
        if not name.startswith("pooler."):
            close(weight.grad, gradients[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [2, 5, 40])
def test_a_step_in_parts_has_the_negatives_of_the_whole_step(kind, parts, base, tmp_path):
    """12 pairs in up to 12 parts: loss and gradients are those of one part."""
    rows = KINDS[kind][0](24)
    whole, divided = (pair_training(rows, base, tmp_path, count) for count in (1, parts))
    close(divided.step(0)["loss"], whole.step(0)["loss"])
    for ours, theirs in zip(divided.weights, whole.weights, strict=True):
        close(ours.grad, theirs.grad)


def test_pairs_that_belong_together_come_near(base, tmp_path):
    file = written(tmp_path / "pairs.jsonl", belonging(200))
    more = ["--steps", 60, "--eval-every", 20, "--batch-size", 12]
    assert call(*argv(file, tmp_path / "out", base, *more)).code == 0
    texts = ["room three", "the key of three please", "the key of nine please"]
    near, far = similarities(tmp_path / "out", texts)
    assert near > far + 0.3
    before = similarities(base, texts)
    assert before[0] - before[1] < near - far


def similarities(model, texts):
    given = call("embed", "-q", "-m", model, "--normalize", *texts).rows
    one, *others = (torch.tensor(row["embedding"]) for row in given)
    return [float(one @ other) for other in others]


def test_scores_become_cosines(base, tmp_path):
    rows = scored(200)
    file = written(tmp_path / "pairs.jsonl", rows)
    more = ["--task", "embed", "--steps", 120, "--eval-every", 40, "--batch-size", 16]
    assert call(*argv(file, tmp_path / "out", base, *more)).code == 0
    other = written(tmp_path / "other.jsonl", scored(100, seed=4))
    (found,) = good("evaluate", other, "-m", tmp_path / "out", "--compare", base).rows
    assert found["task"] == "embed"
    assert found["spearman"] > found["compare"]["spearman"] + 0.2, found


def test_the_result_is_a_sentence_model(base, tmp_path):
    file = written(tmp_path / "pairs.jsonl", belonging(20))
    assert call(*argv(file, tmp_path / "out", base, "--steps", 2, "--max-length", 20)).code == 0
    assert json_in(tmp_path / "out" / "manifest.json")["pooling"] == "mean"
    from sentence_transformers import SentenceTransformer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SentenceTransformer(str(tmp_path / "out"))
    (row,) = good("embed", "-q", "-m", tmp_path / "out", "room one").rows
    close(torch.tensor(row["embedding"]), torch.from_numpy(model.encode("room one")))
    assert model.max_seq_length == 20
