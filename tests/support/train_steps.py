"""Shared by the tests of `bertcli train`: a step of a task, and interrupted runs."""

from dataclasses import replace

import torch
from example_files import written
from model_reference import close

from bertcli.model_folder.folder import ModelFolder
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.tasks.examples import examples_source
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.loop import Ranks, Training, rows_of_step
from bertcli.training.options import FineTuningJob


def argv(file, out, base, *more):
    """Return the arguments of a training command."""
    fixed = ["--threads", 1, "--device", "cpu", "--batch-size", 8, "--learning-rate", 3e-3]
    return ["train", file, "-o", out, "-m", base, *fixed, *more]


def opened(opener, rows, place, base, batch_size=10, **changes):
    """Return the task of examples, all of which are trained on."""
    file = str(written(place / "examples.jsonl", rows))
    job = FineTuningJob(file, eval_fraction=0.0, **changes)
    texts = LabelledTexts.read(job, [Reader(examples_source(file, Input()))], 0)
    options = {"steps": 2, "batch_size": batch_size, "warmup_steps": 0, "max_grad_norm": 0.0}
    return opener(job, options, texts, ModelFolder.open(base))


def standing(task, parts=1):
    """Return the training of a task with ``parts`` micro-batches per step, and constant weights."""
    options = replace(task.options, gradient_accumulation_steps=parts)
    ranks = Ranks(torch.device("cpu"))
    training = Training(task.build(None), task.objective, task.rows, options, ranks)
    training.optimizer.step = lambda *given: None
    return training


def check_step(training, their_step):
    """Compare a step with the loss and the gradients that ``their_step`` returns for its rows."""
    step = training.step(0)
    loss, gradients = their_step(rows_of_step(training.rows, 0, training.options.batch_size, 0))
    close(step["loss"], loss)
    for name, weight in training.model.named_parameters():
        close(weight.grad, gradients[name])


def stop_at(monkeypatch, number):
    """Interrupt training before this step."""
    step = Training.step

    def stopping(self, at):
        if at == number:
            raise KeyboardInterrupt
        return step(self, at)

    monkeypatch.setattr(Training, "step", stopping)
