"""Fine-tuning as a task of the loop: labelled texts, and a head over all or some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import bert_folder, read_config
from bertcli.embedding.dense import MODULES
from bertcli.errors import UsageError
from bertcli.inference.runtime import refuse_pairs, refuse_unfit, token_limit
from bertcli.models.config import BertConfig
from bertcli.models.heads import BertForSequenceClassification
from bertcli.models.surgery import initialise_weight
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.checkpoints import put_model
from bertcli.training.label_losses import LabelLoss
from bertcli.training.label_objective import HeldLabels, LabelObjective, text_logits
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.options import FineTuningJob, Selection, TrainingOptions
from bertcli.training.result import RunSummary, put_description
from bertcli.training.token_rows import TokenRows

PROBLEMS = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}


@dataclass(frozen=True)
class ClassifierTask:
    """BertForSequenceClassification on labelled texts."""

    job: FineTuningJob
    options: TrainingOptions
    texts: LabelledTexts
    base: Path
    config: BertConfig
    start: BertForSequenceClassification  # its weights may be mapped files
    objective: LabelObjective
    tally: TokenCounts
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls, job: FineTuningJob, options: TrainingOptions, texts: LabelledTexts, base: Path
    ) -> ClassifierTask:
        """Tokenize the texts, and load the model with a head for their labels.

        Raises ModelError for a folder that is not a whole BERT.
        """
        options = job.settled(options, len(texts.train), frozen=False)
        torch.manual_seed(options.seed)
        start, notes = _with_head(base, texts.names)
        config = _config(start, texts)
        _check_layers(job.layers, config)
        data, tally = _tokenized(job, texts, base, config)
        loss = LabelLoss(texts.task, texts.weights(job.class_weights), job.label_smoothing)
        objective = LabelObjective(data, text_logits, loss)
        return cls(job, options, texts, base, config, start, objective, tally, notes)

    @property
    def rows(self) -> Any:
        """The examples to train on."""
        return self.texts.train

    @cached_property
    def held(self) -> HeldLabels | None:
        """The examples to evaluate on, in the order of their lengths."""
        held = self.texts.held
        if not len(held):
            return None
        lengths = self.objective.read(held)["lengths"]
        return HeldLabels(
            self.objective, held[np.argsort(lengths, kind="stable")], len(self.texts.names)
        )

    @property
    def selection(self) -> Selection | None:
        """How the best weights are chosen."""
        return self.texts.selection(self.job.patience)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run."""
        return {
            **self.texts.identity(self.job, self.base),
            "method": "full",
            "config": self.config.to_dict(),
            "layers": self.job.layers,
        }

    def model(self, checkpoint: Path | None) -> BertForSequenceClassification:
        """Build the model; weights are copied, not mapped, whose address can change last bits."""
        model = BertForSequenceClassification(self.config)
        source = self.start
        if checkpoint is not None:
            source, _ = load(checkpoint, BertForSequenceClassification, dtype=torch.float32)
        model.load_state_dict(source.state_dict())
        freeze_below(model, self.job.layers)
        return model

    def put(self, folder: Path, model: BertForSequenceClassification) -> None:
        """Write the model with its tokenizer."""
        put_model(folder, model, self.config, self.base)

    def publish(
        self, folder: Path, model: BertForSequenceClassification, summary: RunSummary
    ) -> None:
        """Write the model, its manifest and its model card."""
        self.put(folder, model)
        put_description(folder, self.texts, self.job, self.options, self.identity, summary)


def _with_head(base: Path, names: Sequence[str]) -> tuple[BertForSequenceClassification, list[str]]:
    """Load a model with a head for these labels: its own if it has them all, else a fresh one."""
    there = read_config(base)
    own = [there.id2label.get(index, "") for index in range(len(there.id2label))]
    model, report = load(
        base, BertForSequenceClassification, dtype=torch.float32, fresh=True, labels=names
    )
    fresh = list(report.fresh)
    if own != list(names) and "classifier.weight" not in fresh:
        for name in ("classifier.weight", "classifier.bias"):
            weight = torch.empty_like(model.get_parameter(name))
            initialise_weight(name, weight, there.initializer_range)
            model.classifier.register_parameter(name.split(".")[1], nn.Parameter(weight))
            fresh.append(name)
    return model, [f"fresh head: {', '.join(fresh)}"] if fresh else []


def _config(start: BertForSequenceClassification, texts: LabelledTexts) -> BertConfig:
    config = replace(start.bert.config, problem_type=PROBLEMS[texts.task])
    if texts.task != "regress":
        return config
    other = {**config.other, "sentence_transformers": {"activation_fn": MODULES["Identity"]}}
    return replace(config, other=other)


def _check_layers(layers: int | None, config: BertConfig) -> None:
    if layers is not None and layers > config.num_hidden_layers:
        raise UsageError(
            f"--layers {layers}: the model has {config.num_hidden_layers} layers",
            f"give 0 to {config.num_hidden_layers}; {config.num_hidden_layers} trains the head "
            "alone",
        )


def freeze_below(model: nn.Module, layers: int | None) -> None:
    """Exclude the embeddings and the layers below this one from training; None: nothing."""
    if layers is None:
        return
    bert = model.get_submodule("bert")
    below = list(bert.get_submodule("encoder.layer").children())[:layers]
    for part in (bert.get_submodule("embeddings"), *below):
        part.requires_grad_(False)


def _tokenized(
    job: FineTuningJob, texts: LabelledTexts, base: Path, config: BertConfig
) -> tuple[TokenRows, TokenCounts]:
    folder = bert_folder(base)
    tokenizer = Tokenizer.load(folder)
    refuse_unfit(folder, config, tokenizer)
    limit = token_limit(config, tokenizer, job.max_length)
    layout = Layout(
        columns=("input_ids", "token_type_ids"), max_length=limit, truncation="longest_first"
    )
    items = tokenizer.encode(texts.records, layout)
    refuse_pairs(items, config.type_vocab_size)
    tally = TokenCounts()
    tally.add(items, limit)
    return TokenRows.of(items, targets=texts.targets), tally
