"""One step of pretraining: loss and gradients of transformers, in parts, in fewer bits."""

import numpy as np
import pytest
import torch
from model_reference import close, load, randomise
from model_reference import theirs as their_model
from pretrain_folders import CONFIG, STILL, VOCABULARY, prepared

from bertcli.models.config import BertConfig
from bertcli.models.heads import BertForPreTraining
from bertcli.training.instances import Instances
from bertcli.training.loop import Ranks, Training, rows_of_step
from bertcli.training.options import TrainingOptions
from bertcli.training.pretraining import PretrainingObjective

CPU = torch.device("cpu")
SHAPE = {**CONFIG, "vocab_size": VOCABULARY}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return Instances(prepared(tmp_path_factory.mktemp("instances") / "data", rows=60))


def model(**changes):
    return randomise(BertForPreTraining(BertConfig.from_dict({**SHAPE, **STILL, **changes})))


def their_loss(reference, data, rows):
    """The loss as transformers computes it, from padded ids and labels."""
    columns = data.rows[rows]
    found = {n: torch.from_numpy(columns[n].astype(np.int64)) for n in columns.dtype.names}
    labels = torch.full_like(found["input_ids"], -100)
    for row, count in enumerate(found["masked_lm_counts"]):
        at = found["masked_lm_positions"][row, :count]
        labels[row, at] = found["masked_lm_ids"][row, :count]
    return reference(
        input_ids=found["input_ids"],
        attention_mask=(torch.arange(data.max_length) < found["lengths"][:, None]).long(),
        token_type_ids=found["token_type_ids"],
        labels=labels,
        next_sentence_label=found["next_sentence_labels"],
    ).loss


@pytest.mark.parity
@pytest.mark.parametrize("padded", [False, True])
def test_loss_and_gradients_are_those_of_transformers(data, padded, monkeypatch):
    monkeypatch.setattr(torch.nn.Parameter, "is_cpu", not padded, raising=False)  # or on a GPU
    reference = their_model("BertForPreTraining", **SHAPE, **STILL).train()
    ours = load(model(), reference).train()
    rows = np.array([50, 3, 17, 31, 4, 28])
    expected = their_loss(reference, data, rows)
    expected.backward()
    objective = PretrainingObjective(data)
    predicted = objective.predict(ours, rows)
    words, follows = objective.sums(predicted, rows)
    loss = words / len(predicted[0][1]) + follows / len(rows)
    loss.backward()
    close(loss, expected)
    theirs = dict(reference.named_parameters())
    for name, weight in ours.named_parameters():
        close(weight.grad, theirs[name].grad)


def trained(data, steps=3, **changes):
    options = TrainingOptions(
        batch_size=10, steps=steps, warmup_steps=1, learning_rate=1e-3, **changes
    )
    training = Training(
        model(), PretrainingObjective(data), np.arange(len(data)), options, Ranks(CPU)
    )
    seen = [training.step(number) for number in range(steps)]
    return training.model, seen


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 7},  # parts of one row and of two
        {"gradient_accumulation_steps": 12},  # more parts than rows
        {"gradient_checkpointing": True},
    ],
)
def test_ways_to_save_memory_train_the_same(data, changes):
    expected, steps = trained(data)
    found, others = trained(data, **changes)
    close(others, steps)
    close(list(found.parameters()), list(expected.parameters()))


@pytest.mark.parity
def test_steps_are_those_of_a_loop_over_transformers(data):
    """AdamW without decay of biases and norms, clipping, warm-up and decay, all together."""
    from transformers import get_linear_schedule_with_warmup

    ours, steps = trained(data, steps=4, max_grad_norm=0.5, weight_decay=0.1)
    reference = their_model("BertForPreTraining", **SHAPE, **STILL).train()
    reference.load_state_dict(model().state_dict(), strict=True)
    decaying = [w for n, w in reference.named_parameters() if w.ndim > 1]
    still = [w for n, w in reference.named_parameters() if w.ndim == 1]
    groups = [{"params": decaying, "weight_decay": 0.1}, {"params": still, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, eps=1e-6)
    schedule = get_linear_schedule_with_warmup(optimizer, 1, 4)
    for number in range(4):
        optimizer.zero_grad()
        loss = their_loss(reference, data, rows_of_step(np.arange(len(data)), number, 10, 0))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        assert steps[number]["lr"] == pytest.approx(optimizer.param_groups[0]["lr"])
        assert steps[number]["grad_norm"] == pytest.approx(norm.item(), rel=1e-4) and norm > 0.5
        assert steps[number]["mlm_loss"] + steps[number]["nsp_loss"] == pytest.approx(
            loss.item(), 1e-5
        )
        optimizer.step()
        schedule.step()
    theirs = dict(reference.named_parameters())
    for name, weight in ours.named_parameters():
        close(weight, theirs[name])


@pytest.mark.parity
def test_the_power_of_the_decay_is_that_of_transformers():
    from transformers import get_polynomial_decay_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    theirs = get_polynomial_decay_schedule_with_warmup(optimizer, 2, 9, lr_end=0.0, power=2.5)
    ours = TrainingOptions(steps=9, warmup_steps=2, learning_rate=0.1, lr_power=2.5)
    for step in range(10):
        assert ours.learning_rate_of(step) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fewer_bits_train_about_the_same(data, dtype):
    _, steps = trained(data)
    found, others = trained(data, dtype=dtype)
    assert {weight.dtype for weight in found.parameters()} == {torch.float32}
    assert others[-1]["mlm_loss"] == pytest.approx(steps[-1]["mlm_loss"], rel=0.02)
    assert others[-1]["mlm_loss"] != steps[-1]["mlm_loss"]


@pytest.mark.parametrize(("rows", "batch"), [(10, 3), (10, 10), (3, 10), (1, 4)])
def test_every_epoch_has_every_row_once(rows, batch):
    numbers = np.arange(100, 100 + rows)
    stream = np.concatenate([rows_of_step(numbers, step, batch, 5) for step in range(40)])
    epochs = [stream[at : at + rows] for at in range(0, len(stream) - rows + 1, rows)]
    assert all(sorted(epoch) == sorted(numbers) for epoch in epochs)
    assert rows == 1 or len({tuple(epoch) for epoch in epochs}) > 1


def test_evaluation_counts_what_is_right(data):
    judged, rows = model(), np.arange(40, 60)
    objective = PretrainingObjective(data, rows)
    found = objective.evaluate(judged, 7)
    assert judged.training
    judged.eval()
    masked = right = follows = 0
    for row in rows:
        one = data.rows[[row]]
        length, count = int(one["lengths"][0]), int(one["masked_lm_counts"][0])
        ids = torch.from_numpy(one["input_ids"][:, :length].astype(np.int64))
        types = torch.from_numpy(one["token_type_ids"][:, :length].astype(np.int64))
        words, pair = judged(ids, types=types)
        places, answers = one["masked_lm_positions"][0, :count], one["masked_lm_ids"][0, :count]
        for at, word in zip(places, answers, strict=True):
            masked += 1
            right += int(words[0, at].argmax()) == word
        follows += int(pair[0].argmax()) == one["next_sentence_labels"][0]
    assert found["masked"] == masked and found["rows"] == 20
    assert found["masked_accuracy"] == right / masked
    assert found["next_sentence_accuracy"] == follows / 20
    whole = objective.evaluate(judged, 20)
    assert whole["eval_loss"] == pytest.approx(found["eval_loss"], rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(found["eval_mlm_loss"]))
