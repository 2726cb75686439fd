"""Fine-tuning as a task of the loop: labelled texts or words, and a head over a BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import bert_folder, read_config
from bertcli.embedding.sentence_folder import IDENTITY
from bertcli.errors import ModelError, UsageError, counted
from bertcli.inference.runtime import refuse_pairs, refuse_unfit, token_limit
from bertcli.models.bert import BertEncoder, BertModel
from bertcli.models.config import BertConfig
from bertcli.models.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertcli.models.surgery import add_extra_embeddings, initialise_weight
from bertcli.tasks.answer import COLUMNS as ANSWER_COLUMNS
from bertcli.tasks.answer import WINDOW, in_windows
from bertcli.tasks.tag import word_windows
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns, largest_id
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.batches import TokenRows
from bertcli.training.checkpoints import put_model
from bertcli.training.label_objective import LabelLoss, LabelObjective, text_logits
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.objective import Objective, TrainedTask
from bertcli.training.options import FineTuningJob, TrainingOptions
from bertcli.training.result import RunSummary, put_description
from bertcli.training.span_objective import SpanObjective, span_rows
from bertcli.training.tag_objective import TagObjective, tagged_rows

HeadedBert: TypeAlias = (
    BertForSequenceClassification | BertForTokenClassification | BertForQuestionAnswering
)
KINDS: Mapping[str, type[HeadedBert]] = {
    "classify": BertForSequenceClassification,
    "multilabel": BertForSequenceClassification,
    "regress": BertForSequenceClassification,
    "tag": BertForTokenClassification,
    "answer": BertForQuestionAnswering,
}

PROBLEMS = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}


@dataclass(frozen=True, kw_only=True)
class FineTuningTask(TrainedTask):
    """A task of examples, which begins with the model of a folder."""

    job: FineTuningJob
    texts: LabelledTexts
    base: Path

    @property
    def patience(self) -> int:
        """Evaluations without a better one, after which the run ends; 0: it does not."""
        return self.job.patience or 0

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run; files by their sha256."""
        return self.texts.identity(self.job, self.base)

    def describe(self, folder: Path, summary: RunSummary) -> None:
        """Write the manifest and the model card of a result."""
        put_description(folder, self.texts, self.job, self.options, self.identity, summary)


@dataclass(frozen=True, kw_only=True)
class HeadTask(FineTuningTask):
    """A BERT with a head for labels of texts, tags of words or answers to questions."""

    config: BertConfig
    start: HeadedBert  # its weights may be mapped files
    tally: TokenCounts

    @classmethod
    def open(
        cls, job: FineTuningJob, options: TrainingOptions, texts: LabelledTexts, base: Path
    ) -> HeadTask:
        """Tokenize the texts, and load the model with a head for their labels.

        Raises ModelError for a folder that is not a whole BERT.
        """
        torch.manual_seed(options.seed)
        start, notes = _with_head(base, KINDS[texts.task], texts.names)
        _add_extra(start.bert, job.extra, texts, base)
        config = _config(start, texts)
        check_layers(job.layers, config)
        items, tally = _tokenized(job, texts, base, config)
        notes += _window_notes(texts, items)
        objective, rows = _objective(job, texts, items)
        return cls(
            options=job.settled(options, len(rows), frozen=False),
            objective=objective,
            rows=rows,
            notes=notes,
            job=job,
            texts=texts,
            base=base,
            config=config,
            start=start,
            tally=tally,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run."""
        own = {"method": "full", "config": self.config.to_dict(), "layers": self.job.layers}
        return {**super().identity, **own}

    def model(self, checkpoint: Path | None) -> HeadedBert:
        """Build the model; weights are copied, not mapped, whose address can change last bits."""
        kind = type(self.start)
        model, source = kind(self.config), self.start
        if checkpoint is not None:
            source, _ = load(checkpoint, kind, dtype=torch.float32)
        model.load_state_dict(source.state_dict())
        freeze_below(model, self.job.layers)
        return model

    def put(self, folder: Path, model: HeadedBert) -> None:
        """Write the model with its tokenizer."""
        put_model(folder, model, self.config, bert_folder(self.base))

    def publish(self, folder: Path, model: HeadedBert, summary: RunSummary) -> None:
        """Write the model, its manifest and its model card."""
        self.put(folder, model)
        self.describe(folder, summary)


def _objective(
    job: FineTuningJob, texts: LabelledTexts, items: Sequence[Encoded]
) -> tuple[Objective, Any]:
    """Return what is learnt from texts, and the rows to train on.

    Rows that are held out come in the order of their lengths.
    """
    samples = np.array([item.sample for item in items])
    train, held = (np.flatnonzero(np.isin(samples, part)) for part in (texts.train, texts.held))
    if texts.task == "answer":
        every = texts.examples.examples
        rows = span_rows(items, every)
        return SpanObjective(data=rows, held=texts.held, items=items, examples=every), train
    lengths = np.array([item.length for item in items])
    held = held[np.argsort(lengths[held], kind="stable")]
    weights = texts.weights(job.class_weights)
    if texts.task == "tag":
        loss = LabelLoss("classify", weights, job.label_smoothing)
        rows, sentences = tagged_rows(items, texts.targets), samples[held]
        tags = TagObjective(data=rows, held=held, loss=loss, samples=sentences, names=texts.names)
        return tags, train
    loss = LabelLoss(texts.task, weights, job.label_smoothing)
    rows, width = TokenRows.of(items, targets=texts.targets), len(texts.names)
    return LabelObjective(data=rows, held=held, logits=text_logits, loss=loss, width=width), train


def _with_head(
    base: Path, kind: type[HeadedBert], names: Sequence[str]
) -> tuple[HeadedBert, list[str]]:
    """Load a model with a head for these labels: its own if it has them all, else a fresh one."""
    there = read_config(base)
    own = [there.id2label.get(index, "") for index in range(len(there.id2label))]
    same = own == list(names) and kind.__name__ in there.architectures
    model: HeadedBert
    model, report = load(base, kind, dtype=torch.float32, fresh=True, labels=names)
    fresh = list(report.fresh)
    headed = not isinstance(model, BertForQuestionAnswering)
    if headed and not same and "classifier.weight" not in fresh:
        for name in ("classifier.weight", "classifier.bias"):
            weight = torch.empty_like(model.get_parameter(name))
            initialise_weight(name, weight, there.initializer_range)
            setattr(model.classifier, name.split(".")[1], nn.Parameter(weight))
            fresh.append(name)
    note = f"fresh head: {', '.join(fresh)}"
    if kind.__name__ in there.architectures and headed and not same:
        note += f"; the labels of {base.name} are others: {', '.join(own)[:80]}"
    return model, [note] if fresh else []


def _config(start: HeadedBert, texts: LabelledTexts) -> BertConfig:
    config = replace(start.bert.config, problem_type=PROBLEMS.get(texts.task))
    if texts.task != "regress":
        return config
    other = {**config.other, "sentence_transformers": {"activation_fn": IDENTITY}}
    return replace(config, other=other)


def _add_extra(
    bert: BertModel, fields: Mapping[str, str], texts: LabelledTexts, base: Path
) -> None:
    """Add the extra embeddings that are asked for; ModelError for others that the model needs."""
    if missing := [name for name in bert.config.extra_embeddings if name not in fields]:
        raise ModelError(
            f"{base}: the model has extra embeddings ({', '.join(missing)}), and needs their ids",
            " ".join(f"--extra {name}=FIELD" for name in missing),
        )
    if fields:
        sizes = {name: largest_id(texts.records, field) + 1 for name, field in fields.items()}
        add_extra_embeddings(bert, fields, sizes)


def check_layers(layers: int | None, config: BertConfig) -> None:
    """Raise UsageError for a layer that the model does not have."""
    if layers is not None and layers > config.num_hidden_layers:
        raise UsageError(
            f"--layers {layers}: the model has {counted(config.num_hidden_layers, 'layer')}",
            f"give 0 to {config.num_hidden_layers}; {config.num_hidden_layers} trains the head "
            "alone",
        )


def freeze_below(model: nn.Module, layers: int | None) -> None:
    """Exclude the embeddings and the layers below this one from training; None: nothing."""
    if layers is None:
        return
    bert = model if isinstance(model, BertModel) else model.get_submodule("bert")
    extra = bert.get_submodule("embeddings.extra").parameters()
    encoder = bert.get_submodule("encoder")
    assert isinstance(encoder, BertEncoder)
    above = {*encoder.order[layers:]}  # a layer that is used again there is trained
    below = [layer for at, layer in enumerate(encoder.layer) if at not in above]
    for part in (bert.get_submodule("embeddings"), *below):
        part.requires_grad_(False)
    for table in extra:  # nothing of them is pretrained
        table.requires_grad_(True)


def _window_notes(texts: LabelledTexts, items: Sequence[Encoded]) -> list[str]:
    """Say how many sentences of tagged words are longer than a window."""
    windows = np.bincount([item.sample for item in items])
    count = int((windows > 1).sum())
    if texts.task != "tag" or not count:
        return []
    length = max(item.length for item in items)
    return [f"{count:,} of {len(windows):,} sentences are read in windows of {length} tokens"]


def _tokenized(
    job: FineTuningJob, texts: LabelledTexts, base: Path, config: BertConfig
) -> tuple[list[Encoded], TokenCounts]:
    folder = bert_folder(base)
    tokenizer = Tokenizer.load(folder)
    refuse_unfit(folder, config, tokenizer)
    limit = token_limit(config, tokenizer, job.max_length)
    further = {"tag": ("word_ids",), "answer": ANSWER_COLUMNS}.get(texts.task, ())
    extra = ExtraColumns.of(config)
    columns = tuple(dict.fromkeys(("input_ids", "token_type_ids", *further, *extra.needed)))
    layout = Layout(columns=columns, max_length=limit, truncation="longest_first")
    if texts.task == "answer":
        layout = in_windows(layout, job.max_length or min(limit, WINDOW))
    elif texts.task == "tag":
        layout = word_windows(layout)
    items = list(extra.added(tokenizer.encode(texts.records, layout), tokenizer))
    refuse_pairs(items, config)
    tally = TokenCounts()
    tally.add(items, limit)
    return items, tally
