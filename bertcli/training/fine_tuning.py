"""Fine-tuning as a task of the loop: labelled texts or words, and a head over a BERT.

Beside the model, a result has its manifest.json and a model card, README.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import bert_folder, read_config, require_weights
from bertcli.embedding.sentence_modules import IDENTITY, SentenceParts, write_sentence_parts
from bertcli.errors import ModelError, UsageError, counted
from bertcli.evaluation.metrics import label_numbers
from bertcli.files.paths import sha256
from bertcli.files.typed_json import strict
from bertcli.files.versions import __version__, versions
from bertcli.inference.runtime import fit_tokenizer, refuse_pairs, token_limit
from bertcli.models.bert import BertEncoder, BertModel
from bertcli.models.config import BertConfig
from bertcli.models.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertcli.models.surgery import add_extra_embeddings, initialise_weight
from bertcli.records.records import Record
from bertcli.tasks.answer import COLUMNS as ANSWER_COLUMNS
from bertcli.tasks.answer import WINDOW, in_windows
from bertcli.tasks.tag import word_windows
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns, largest_id
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.batches import TokenRows
from bertcli.training.checkpoints import put_model
from bertcli.training.labelled_texts import UNNAMED, LabelledTexts
from bertcli.training.loop import Objective, TrainedTask
from bertcli.training.objectives import (
    LabelLoss,
    LabelObjective,
    SpanObjective,
    TagObjective,
    span_rows,
    tag_logits,
    tagged_rows,
    text_logits,
)
from bertcli.training.options import FineTuningJob, TrainingOptions

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
PIPELINES = {
    "classify": "text-classification",
    "multilabel": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "embed": "sentence-similarity",
}


@dataclass(frozen=True, kw_only=True)
class FineTuningTask(TrainedTask):
    """A task of examples, which begins with the model of a folder."""

    job: FineTuningJob
    texts: LabelledTexts
    base: Path
    max_length: int  # tokens of a text
    tally: TokenCounts

    @property
    def patience(self) -> int:
        """Evaluations without a better one, after which the run ends; 0: it does not."""
        return self.job.patience or 0

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run; files by their sha256."""
        texts, weights = self.texts, require_weights(bert_folder(self.base)).all
        decisive = ("max_length", "class_weights", "label_smoothing", "patience")
        return {
            "task": texts.task,
            "data_sha256": texts.digest,
            "base_sha256": " ".join(map(sha256, weights)),
            "labels": list(texts.names),
            "training": {name: getattr(self.job, name) for name in decisive},
        }

    def describe(self, folder: Path, best: Mapping[str, Any]) -> None:
        """Write the manifest and the model card of a result."""
        texts, identity, options = self.texts, self.identity, asdict(self.options)
        del options["eval_fraction"]
        config = identity.pop("config", {})
        manifest = {
            "bertcli": __version__,
            "versions": versions("torch", "tokenizers", "numpy"),
            **identity,
            "data": [{"path": path, "sha256": digest} for path, digest in texts.sources],
            "examples": {"train": len(texts.train), "eval": len(texts.held)},
            "options": {**asdict(self.job), **options},
            "steps": self.options.schedule(len(self.rows)).steps,
            "metrics": dict(best),
        }
        text = json.dumps(strict(manifest), indent=2, ensure_ascii=False) + "\n"
        (folder / "manifest.json").write_text(text, "utf-8")
        fields = [*config.get("extra_fields", {}).values()]
        card = model_card(texts, self.job.base, identity["method"], fields, best)
        (folder / "README.md").write_text(card, "utf-8")


def model_card(
    texts: LabelledTexts, base: str, method: str, fields: list[str], best: Mapping[str, Any]
) -> str:
    """Return README.md: what the model does, how it was made, how good it is."""
    task, record = texts.task, texts.records[0]
    pipeline = f"pipeline_tag: {PIPELINES[task]}\n" if task in PIPELINES else ""
    base_model = "" if Path(base).is_dir() else f"base_model: {base}\n"
    rows = [
        f"| {name} | {value:.4f} |\n"
        for name, value in best.items()
        if isinstance(value, float) and name != "eval_loss"
    ]
    words = f"Each text comes with ids of its words: `{'`, `'.join(fields)}`\n\n" if fields else ""
    labels = f"Labels: {', '.join(f'`{name}`' for name in texts.names)}\n" if texts.names else ""
    table = f"\n| metric | held-out examples |\n|---|---|\n{''.join(rows)}" if rows else ""
    arguments = '"some text"'
    if record.extra:
        arguments = "-i texts.jsonl"
    elif task == "answer":
        arguments = '--question "a question" --context "a text"'
    elif record.pair is not None and task != "embed":
        arguments += ' --pair "another"'
    return f"""---
tags:
- bert
- bertcli
{pipeline}{base_model}---

# BERT for {task}

`{base}`, trained with `bertcli train` ({method}) on {len(texts.train):,} examples, evaluated on \
{len(texts.held):,}. `manifest.json` has the options, the versions and the sha256 of the data.

{words}{labels}{table}
```
bertcli {"classify" if task in PROBLEMS else task} {arguments} -m THIS_FOLDER
```
"""


@dataclass(frozen=True, kw_only=True)
class FullTask(FineTuningTask):
    """A BERT with a head for labels, tags or answers, or ``parts`` that make vectors."""

    config: BertConfig
    start: HeadedBert | BertModel  # its weights may be mapped files
    parts: SentenceParts | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run."""
        own = {"method": "full", "config": self.config.to_dict(), "layers": self.job.layers}
        pooling = {"pooling": "+".join(self.parts.modes)} if self.parts else {}
        return {**super().identity, **own, **pooling}

    def model(self, checkpoint: Path | None) -> Any:
        """Build the model; weights are copied, not mapped, whose address can change last bits."""
        source = self.start
        if checkpoint is not None:
            source, _ = load(checkpoint, type(self.start), dtype=torch.float32)
        model = deepcopy(source)
        freeze_below(model, self.job.layers)
        if isinstance(model, BertModel):
            model.pooler.requires_grad_(False)  # no vector is made with it
        return model

    def put(self, folder: Path, model: Any) -> None:
        """Write the model with its tokenizer."""
        put_model(folder, model, self.config, bert_folder(self.base))

    def publish(self, folder: Path, model: Any, best: Mapping[str, Any]) -> None:
        """Write the model, its manifest and its model card."""
        self.put(folder, model)
        if self.parts:
            write_sentence_parts(folder, self.parts, self.base)
        self.describe(folder, best)


def head_task(
    job: FineTuningJob, options: TrainingOptions, texts: LabelledTexts, base: Path
) -> FullTask:
    """Tokenize the texts, and load the model with a head for their labels.

    Raises ModelError for a folder that is not a whole BERT.
    """
    torch.manual_seed(options.seed)
    start, texts, notes = _with_head(base, KINDS[texts.task], texts)
    bert, fields = start.bert, job.extra
    if missing := [name for name in bert.config.extra_embeddings if name not in fields]:
        raise ModelError(
            f"{base}: the model has extra embeddings ({', '.join(missing)}), and needs their ids",
            " ".join(f"--extra {name}=FIELD" for name in missing),
        )
    if fields:
        sizes = {name: largest_id(texts.records, field) + 1 for name, field in fields.items()}
        add_extra_embeddings(bert, fields, sizes)
    config = replace(bert.config, problem_type=PROBLEMS.get(texts.task))
    if texts.task == "regress":
        identity = {"activation_fn": IDENTITY}
        config = replace(config, other={**config.other, "sentence_transformers": identity})
    items, limit, tally = tokenized(job, texts.task, texts.records, bert_folder(base), config)
    samples = np.array([item.sample for item in items])
    lengths = np.array([item.length for item in items])
    count = int((np.bincount(samples) > 1).sum())
    if texts.task == "tag" and count:
        notes.append(
            f"{count:,} of {len(texts.records):,} sentences are read in windows of "
            f"{lengths.max()} tokens"
        )
    rows, held = (np.flatnonzero(np.isin(samples, part)) for part in (texts.train, texts.held))
    held = held[np.argsort(lengths[held], kind="stable")]
    return FullTask(
        options=job.settled(options, len(rows), frozen=False),
        objective=_objective(job, texts, items, held),
        rows=rows,
        notes=notes,
        job=job,
        texts=texts,
        base=base,
        max_length=limit,
        tally=tally,
        start=start,
        config=config,
    )


def _objective(
    job: FineTuningJob, texts: LabelledTexts, items: list[Encoded], held: np.ndarray
) -> Objective:
    """Return what is learnt from texts; ``held`` are windows, in the order of their lengths."""
    task, examples, weights = texts.task, texts.examples.examples, texts.weights(job.class_weights)
    if task == "answer":
        rows = span_rows(items, examples)
        return SpanObjective(data=rows, held=held, items=items, examples=examples)
    if task == "tag":
        loss = LabelLoss("classify", weights, job.label_smoothing)
        rows = tagged_rows(items, texts.targets)
        sentences = np.array([items[row].sample for row in held])
        return TagObjective(
            data=rows,
            held=held,
            logits=tag_logits,
            loss=loss,
            samples=sentences,
            names=texts.names,
        )
    loss = LabelLoss(task, weights, job.label_smoothing)
    rows = TokenRows.of(items, targets=texts.targets)
    return LabelObjective(data=rows, held=held, logits=text_logits, loss=loss)


def _with_head(
    base: Path, kind: type[HeadedBert], texts: LabelledTexts
) -> tuple[HeadedBert, LabelledTexts, list[str]]:
    """Load a model with a head for these labels: its own if it is for no others, else a fresh one.

    With its own head, the labels have the numbers that they have there.
    """
    config, labels = read_config(base), {*texts.names}
    own = [config.id2label.get(at, f"LABEL_{at}") for at in range(config.num_labels)]
    numbers = label_numbers(own, labels)
    headed = kind.__name__ in config.architectures
    same = headed and (numbers.keys() == labels or (texts.task == "regress" and len(own) == 1))
    if same and texts.task not in UNNAMED:
        texts = texts.numbered(own, numbers)
    model: HeadedBert
    model, report = load(base, kind, dtype=torch.float32, fresh=True, labels=texts.names)
    fresh = list(report.fresh)
    other = not (same or isinstance(model, BertForQuestionAnswering))
    if other and "classifier.weight" not in fresh:
        for name in ("weight", "bias"):
            weight = torch.empty_like(model.get_parameter(f"classifier.{name}"))
            initialise_weight(f"classifier.{name}", weight, config.initializer_range)
            setattr(model.get_submodule("classifier"), name, nn.Parameter(weight))
            fresh.append(f"classifier.{name}")
    note = f"fresh head: {', '.join(fresh)}"
    if headed and other:
        note += f"; the labels of {base.name} are others: {', '.join(own)[:80]}"
    return model, texts, [note] if fresh else []


def freeze_below(model: nn.Module, layers: int | None) -> None:
    """Exclude the embeddings and the layers below this one from training; None: nothing."""
    if layers is None:
        return
    bert = model if isinstance(model, BertModel) else model.get_submodule("bert")
    encoder = bert.get_submodule("encoder")
    assert isinstance(encoder, BertEncoder)
    above = {*encoder.order[layers:]}  # a layer that is used again there is trained
    below = [layer for number, layer in enumerate(encoder.layer) if number not in above]
    for part in (bert.get_submodule("embeddings"), *below):
        part.requires_grad_(False)
    bert.get_submodule("embeddings.extra").requires_grad_(True)  # nothing of them is pretrained


def tokenized(
    job: FineTuningJob,
    task: str,
    records: Sequence[Record],
    folder: Path,
    config: BertConfig,
    most: int | None = None,
) -> tuple[list[Encoded], int, TokenCounts]:
    """Return texts as tokens, their limit, at ``most`` this, and what was truncated.

    Raises UsageError for a layer to train that the model does not have.
    """
    layers = config.num_hidden_layers
    if job.layers is not None and job.layers > layers:
        raise UsageError(
            f"--layers {job.layers}: the model has {counted(layers, 'layer')}",
            f"give 0 to {layers}; {layers} trains the head alone",
        )
    tokenizer = Tokenizer.load(folder)
    fit_tokenizer(folder, config, tokenizer)
    limit = token_limit(config, tokenizer, job.max_length, most)
    further = {"tag": ("word_ids",), "answer": ANSWER_COLUMNS}.get(task, ())
    extra = ExtraColumns.of(config)
    columns = tuple(dict.fromkeys(("input_ids", "token_type_ids", *further, *extra.needed)))
    layout = Layout(columns=columns, max_length=limit, truncation="longest_first")
    if task == "answer":
        limit = job.max_length or min(limit, WINDOW)
        layout = in_windows(layout, limit)
    elif task == "tag":
        layout = word_windows(layout)
    batch = tokenizer.encode_batch(records, layout)
    items = list(extra.added(batch.encoded(columns), tokenizer))
    refuse_pairs(items, config)
    tally = TokenCounts()
    tally.add(batch, limit)
    return items, limit, tally
