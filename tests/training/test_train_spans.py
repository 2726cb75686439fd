"""`bertcli train` on questions with answers: the loss of transformers, windows, what loads it."""

import json

import pytest
import torch
import transformers
from example_files import asked, written
from front import bad, call, good
from model_reference import close
from pretrain_folders import lines

from bertcli.records.examples import AnswerSpan, examples_source
from bertcli.records.reader import Reader
from bertcli.training.fine_tuning import HeadTask
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.loop import Training
from bertcli.training.options import FineTuningJob, TrainingOptions
from bertcli.training.ranks import Ranks
from bertcli.training.span_objective import token_places

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def base(models):
    return models("BertForMaskedLM", **STILL)


def argv(file, out, base, *more):
    fixed = ["--threads", 1, "--device", "cpu", "--batch-size", 8, "--learning-rate", 3e-3]
    return ["train", file, "-o", out, "-m", base, *fixed, *more]


def opened(rows, path, base, **changes):
    file = str(written(path / "e.jsonl", rows))
    job = FineTuningJob(file, eval_fraction=0.0, batch_size=10, **changes)
    texts = LabelledTexts.read(job, lambda path: Reader(examples_source(path)), 0)
    options = TrainingOptions(steps=2, warmup_steps=0, max_grad_norm=0.0)
    return HeadTask.open(job, options, texts, base)


def their_step(task, base, rows):
    """The mean of the losses of transformers of each text alone, without padding."""
    theirs = transformers.BertForQuestionAnswering(
        transformers.BertConfig.from_pretrained(base, **STILL)
    )
    theirs.load_state_dict(task.start.state_dict())
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
    task = opened(rows, tmp_path, base)
    training = Training(
        task.model(None), task.objective, task.rows, task.options, Ranks(torch.device("cpu"))
    )
    training.optimizer.step = lambda *given: None
    step = training.step(0)
    loss, gradients = their_step(task, base, [rows[at] for at in training.order.batch(0)])
    close(step.losses["loss"], loss)
    for name, weight in training.model.named_parameters():
        close(weight.grad, gradients[name])


def test_long_contexts_are_windows(base, tmp_path):
    row = {"question": "how", "context": "the film was very long and " * 8 + "good"}
    row |= {"answer": "good", "start": len(row["context"]) - 4}
    task = opened([row, row], tmp_path, base, max_length=24)
    spans = task.objective.data.targets["spans"]
    assert len(spans) > 4 and len(task.rows) == len(spans)
    assert spans[0].tolist() == [0, 0] and spans[len(spans) // 2 - 1][0] > 0
    assert token_places(None, AnswerSpan("", None)) == (0, 0)


def test_a_rule_is_learnt_and_used(base, tmp_path):
    file = written(tmp_path / "asked.jsonl", asked(240))
    more = ["--steps", 200, "--eval-every", 50, "--batch-size", 16]
    assert call(*argv(file, tmp_path / "out", base, *more)).code == 0
    metrics = json.loads((tmp_path / "out" / "manifest.json").read_text())["metrics"]
    assert metrics["f1"] > 0.99, metrics
    other = written(tmp_path / "other.jsonl", asked(40, seed=8))
    (found,) = good("evaluate", other, "-m", tmp_path / "out").rows
    assert (found["task"], found["exact_match"] > 0.99) == ("answer", True)
    given = ["--question", "how was it", "--context", "the film was lovely"]
    (row,) = good("answer", "-m", tmp_path / "out", *given).rows
    assert row["answer"] == "lovely"
    transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out")


def test_interrupted_and_resumed_to_the_same_bits(base, tmp_path, monkeypatch):
    rows = [*asked(30), {"question": "how", "context": "the film", "answer": "", "start": None}]
    file = written(tmp_path / "asked.jsonl", rows)
    more = ["--steps", 6, "--save-every", 2, "--log-every", 2, "--eval-every", 2, "--resume"]
    assert call(*argv(file, tmp_path / "whole", base, *more)).code == 0
    step = Training.step

    def stopping(self, at):
        if at == 3:
            raise KeyboardInterrupt
        return step(self, at)

    monkeypatch.setattr(Training, "step", stopping)
    assert call(*argv(file, tmp_path / "out", base, *more)).code == 130
    monkeypatch.undo()
    assert call(*argv(file, tmp_path / "out", base, *more)).code == 0
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")
    for name in ("model.safetensors", "manifest.json", "checkpoint-6/optimizer.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"start": 3}, "the answer does not stand at 3 of the context"),
        ({"answer": 7}, "field 'answer' is a whole number, not a string"),
        ({"context": None}, "field 'context' is"),
    ],
)
def test_answers_that_are_none(changes, said, base, tmp_path):
    row = {"question": "who", "context": "Angela", "answer": "Angela", "start": 0}
    file = written(tmp_path / "e.jsonl", [row, row | changes])
    assert said in bad(*argv(file, tmp_path / "out", base)).error
