"""`bertcli train` on questions with answers: the loss of transformers, windows, what loads it."""

import pytest
import torch
import transformers
from example_files import asked, written
from front import (
    call,
    good,
    json_in,
)
from pretrain_folders import STILL
from train_steps import argv, check_step, opened, standing

from bertcli.tasks.answer import AnswerSpan, answer_tokens
from bertcli.training.fine_tuning import head_task


def their_step(task, base, rows):
    """The mean of the losses of transformers of each text alone, without padding."""
    theirs = transformers.BertForQuestionAnswering(
        transformers.BertConfig.from_pretrained(base, **STILL)
    )
    theirs.load_state_dict(task.build(None).state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    losses = []
    for row in rows:
        batch = tokenizer(row["question"], row["context"], return_tensors="pt")
        end = row["start"] + len(row["answer"]) - 1
        places = [batch.char_to_token(0, at, 1) for at in (row["start"], end)]
        start_at, end_at = (torch.tensor([place]) for place in places)
        losses.append(theirs(**batch, start_positions=start_at, end_positions=end_at).loss)
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss.item(), {name: one.grad for name, one in theirs.named_parameters()}


@pytest.mark.parity
def test_a_step_is_that_of_transformers(base, tmp_path):
    rows = asked(20)
    task = opened(head_task, rows, tmp_path, base)
    check_step(standing(task), lambda some: their_step(task, base, [rows[at] for at in some]))


def test_long_contexts_are_windows(base, tmp_path):
    row = {"question": "how", "context": "the film was very long and " * 8 + "good"}
    row |= {"answer": "good", "start": len(row["context"]) - 4}
    task = opened(head_task, [row, row], tmp_path, base, max_length=24)
    spans = task.objective.targets
    assert len(spans) > 4 and len(task.rows) == len(spans)
    assert spans[0].tolist() == [0, 0] and spans[len(spans) // 2 - 1][0] > 0
    assert answer_tokens(None, AnswerSpan("", None)) == (0, 0)


def test_a_rule_is_learnt_and_used(base, tmp_path):
    file = written(tmp_path / "asked.jsonl", asked(240))
    more = ["--steps", 200, "--eval-every", 50, "--batch-size", 16]
    assert call(*argv(file, tmp_path / "out", base, *more)).code == 0
    metrics = json_in(tmp_path / "out" / "manifest.json")["metrics"]
    assert metrics["f1"] > 0.99, metrics
    other = written(tmp_path / "other.jsonl", asked(40, seed=8))
    (found,) = good("evaluate", other, "-m", tmp_path / "out").rows
    assert (found["task"], found["exact_match"] > 0.99) == ("answer", True)
    given = ["--question", "how was it", "--context", "the film was lovely"]
    (row,) = good("answer", "-m", tmp_path / "out", *given).rows
    assert row["answer"] == "lovely"
    transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out")
