"""Fine-tuning as a task of the loop: examples, and a head over a BERT, or its vectors.

`head_task` trains all weights, `FrozenTask` a head over vectors that are computed once, `pair_task`
an embedding model. Beside the model, a result has its manifest.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from bertcli.checkpoints.load import load, load_tensors, save_tensors
from bertcli.checkpoints.scan import bert_folder, read_config, require_weights
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions, prepared, read_sentence
from bertcli.embedding.options import settled as chosen_options
from bertcli.embedding.sentence_modules import (
    IDENTITY,
    Dense,
    SentenceParts,
    write_sentence_parts,
)
from bertcli.errors import ModelError, UsageError, counted
from bertcli.evaluation.metrics import label_numbers
from bertcli.files.paths import sha256
from bertcli.files.typed_json import strict
from bertcli.files.versions import __version__, versions
from bertcli.hub import ModelFolder
from bertcli.inference.runner import Tokens
from bertcli.inference.runtime import fit_tokenizer, refuse_extra, refuse_pairs, token_limit
from bertcli.models.bert import BertModel
from bertcli.models.config import BertConfig
from bertcli.models.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertcli.models.surgery import add_extra_embeddings, initialise_weight
from bertcli.records.examples import CONTRAST
from bertcli.records.records import Record
from bertcli.tasks.answer import COLUMNS as ANSWER_COLUMNS
from bertcli.tasks.answer import WINDOW, in_windows
from bertcli.tasks.tag import word_windows
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns, largest_id
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.labelled_texts import UNNAMED, LabelledTexts
from bertcli.training.loop import Objective, TrainedTask, put_model
from bertcli.training.objectives import (
    NONE,
    LabelObjective,
    PairObjective,
    SpanObjective,
    TagObjective,
    VectorObjective,
)
from bertcli.training.options import FineTuningJob, settled
from bertcli.vectors.embed_run import RecordVectors

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
    max_length: int  # tokens of a text
    tally: TokenCounts

    def describe(self, folder: Path, best: Mapping[str, Any]) -> None:
        """Write the manifest of a result."""
        texts = self.texts
        manifest = {
            "bertcli": __version__,
            "versions": versions("torch", "tokenizers", "numpy"),
            **{name: value for name, value in self.identity.items() if name != "config"},
            "data": [{"path": file["name"], "sha256": file["sha256"]} for file in texts.sources],
            "examples": {"train": len(texts.train), "eval": len(texts.held)},
            "options": asdict(self.job) | asdict(self.options),
            "steps": self.options.schedule(len(self.rows)).steps,
            "metrics": dict(best),
        }
        text = json.dumps(strict(manifest), indent=2, ensure_ascii=False) + "\n"
        (folder / "manifest.json").write_text(text, "utf-8")


def settings(
    job: FineTuningJob,
    options: Mapping[str, Any],
    texts: LabelledTexts,
    base: Path,
    rows: Any,
    **method: Any,
) -> dict[str, Any]:
    """Return the fields that all tasks have; ``method`` decides the results as well."""
    decisive = ("max_length", "class_weights", "label_smoothing", "patience")
    identity = {
        "task": texts.task,
        "data_sha256": texts.digest,
        "base_sha256": " ".join(map(sha256, require_weights(bert_folder(base)).all)),
        "labels": list(texts.names),
        "training": {name: getattr(job, name) for name in decisive},
        **method,
    }
    return {
        "options": settled(options, len(rows), frozen=method["method"] == "frozen"),
        "rows": rows,
        "identity": identity,
        "patience": job.patience or 0,
        "job": job,
        "texts": texts,
        "base": base,
    }


@dataclass(frozen=True, kw_only=True)
class FullTask(FineTuningTask):
    """A BERT with a head for labels, tags or answers, or ``parts`` that make vectors."""

    config: BertConfig
    start: HeadedBert | BertModel  # its weights may be mapped files
    parts: SentenceParts | None = None

    def model(self, checkpoint: Path | None) -> Any:
        """Build the model; weights are copied, not mapped, whose address can change last bits."""
        source = self.start
        if checkpoint is not None:
            source, _ = load(checkpoint, type(self.start), dtype=torch.float32)
        model: Any = deepcopy(source)
        bert = model if isinstance(model, BertModel) else model.bert
        if bert is model:
            bert.pooler.requires_grad_(False)  # no vector is made with it
        if self.job.layers is not None:
            bert.embeddings.requires_grad_(False)
            bert.embeddings.extra.requires_grad_(True)  # nothing of them is pretrained
            above = {*bert.encoder.order[self.job.layers :]}  # one may be used twice
            for number, layer in enumerate(bert.encoder.layer):
                layer.requires_grad_(number in above)
        return model

    def put(self, folder: Path, model: Any) -> None:
        """Write the model with its tokenizer."""
        put_model(folder, model, self.config, bert_folder(self.base))

    def publish(self, folder: Path, model: Any, best: Mapping[str, Any]) -> None:
        """Write the model and its manifest."""
        self.put(folder, model)
        if self.parts:
            write_sentence_parts(folder, self.parts, self.base)
        self.describe(folder, best)


# --- a head for labels, tags or answers ---


def head_task(
    job: FineTuningJob, options: Mapping[str, Any], texts: LabelledTexts, base: Path
) -> FullTask:
    """Tokenize the texts, and load the model with a head for their labels.

    Raises ModelError for a folder that is not a whole BERT.
    """
    torch.manual_seed(options.get("seed", 0))
    task = texts.task
    start, texts, notes = _with_head(base, KINDS[task], texts)
    bert, fields = start.bert, job.extra
    if missing := [name for name in bert.config.extra_embeddings if name not in fields]:
        raise ModelError(
            f"{base}: the model has extra embeddings ({', '.join(missing)}), and needs their ids",
            " ".join(f"--extra {name}=FIELD" for name in missing),
        )
    if fields:
        sizes = {name: largest_id(texts.records, field) + 1 for name, field in fields.items()}
        add_extra_embeddings(bert, fields, sizes)
    config = replace(bert.config, problem_type=PROBLEMS.get(task))
    if task == "regress":
        activation = {"activation_fn": IDENTITY}
        config = replace(config, other={**config.other, "sentence_transformers": activation})
    items, limit, tally = tokenized(job, task, texts.records, bert_folder(base), config)
    samples = np.array([item.sample for item in items])
    lengths = np.array([item.length for item in items])
    rows, held = (np.flatnonzero(np.isin(samples, part)) for part in (texts.train, texts.held))
    held = held[np.argsort(lengths[held], kind="stable")]
    weighing = {"weights": texts.weights(job.class_weights), "smoothing": job.label_smoothing}
    objective: Objective
    if task == "answer":
        objective = SpanObjective.of(items, texts.examples.examples, held)
    elif task == "tag":
        objective = TagObjective.of(items, texts.targets, texts.names, held=held, **weighing)
    else:
        objective = LabelObjective(
            data=Tokens.of(items), held=held, task=task, labels=texts.targets, **weighing
        )
    method = {"method": "full", "config": config.to_dict(), "layers": job.layers}
    return FullTask(
        **settings(job, options, texts, base, rows, **method),
        objective=objective,
        notes=notes,
        max_length=limit,
        tally=tally,
        start=start,
        config=config,
    )


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
    return model, texts, [f"fresh head: {', '.join(fresh)}"] if fresh else []


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
    batch = tokenizer.encode_records(records, layout)
    batch = extra.added(batch, tokenizer)
    refuse_pairs(batch, config)
    tally = TokenCounts()
    tally.add(batch, limit)
    return [*batch], limit, tally


# --- a head alone, over vectors that are computed once ---

HEAD = "head.safetensors"
LEAST_SPREAD = 1e-6  # of a dimension that is scaled
SPREAD = 0.02  # of the first weights


@dataclass(frozen=True, kw_only=True)
class FrozenTask(FineTuningTask):
    """A linear layer over vectors that do not change, made with the model's own pooling.

    The result is a sentence-transformers model that ends in a Dense layer, whose vectors are
    logits, and a classifier for bertcli. The head is trained on standardised vectors, and written
    for those of the model.
    """

    embedder: Embedder
    mean: np.ndarray  # of each dimension of the vectors to train on
    deviation: np.ndarray

    @classmethod
    def open(
        cls,
        job: FineTuningJob,
        options: Mapping[str, Any],
        texts: LabelledTexts,
        folder: ModelFolder,
        compute: dict[str, Any],
        run: Callable[[RecordVectors], None],
    ) -> FrozenTask:
        """Open the model and ``run`` it; UsageError for options without effect on a head alone."""
        if texts.task in ("tag", "answer"):
            what = "tags of words" if texts.task == "tag" else "answers"
            raise UsageError(f"--frozen cannot learn {what}", "leave it out, or give --full")
        if job.layers is not None:
            raise UsageError("--layers requires --full", "--frozen trains no layer of the model")
        read_config(folder.path)  # what is trained is put behind an encoder
        embedder = Embedder.open(folder, EmbedOptions(max_length=job.max_length, **compute))
        whole = replace(embedder.options, dim=None)  # the head takes all that the modules give
        source = RecordVectors(replace(embedder, options=whole), texts.records)
        run(source)
        train = source.vectors[texts.train].astype(np.float64)
        mean, deviation = train.mean(0), np.maximum(train.std(0), LEAST_SPREAD)
        chosen = source.embedder.chosen()
        vectors = {name: chosen[name] for name in ("pooling", "normalize", "max_length", "prompt")}
        return cls(
            **settings(
                job, options, texts, folder.path, texts.train, method="frozen", vectors=vectors
            ),
            objective=VectorObjective(
                data=((source.vectors - mean) / deviation).astype(np.float32),
                held=texts.held,
                task=texts.task,
                labels=texts.targets,
                weights=texts.weights(job.class_weights),
                smoothing=job.label_smoothing,
            ),
            max_length=embedder.max_length,
            tally=source.tally,
            embedder=source.embedder,
            mean=mean,
            deviation=deviation,
        )

    def model(self, checkpoint: Path | None) -> nn.Linear:
        """Build the head: fresh, or as it is in a checkpoint."""
        head = nn.Linear(len(self.mean), len(self.texts.names))
        nn.init.normal_(head.weight, std=SPREAD)
        nn.init.zeros_(head.bias)
        if checkpoint is not None:
            head.load_state_dict(load_tensors(checkpoint / HEAD))
        return head

    def put(self, folder: Path, model: nn.Linear) -> None:
        """Write the head alone."""
        save_tensors(folder / HEAD, model.state_dict())

    def publish(self, folder: Path, model: nn.Linear, best: Mapping[str, Any]) -> None:
        """Write the whole sentence model: the BERT, its pooling, and the head."""
        weight = model.weight.detach().cpu().double().numpy() / self.deviation
        bias = model.bias.detach().cpu().double().numpy() - weight @ self.mean
        layer = Dense(weight.astype(np.float32), bias.astype(np.float32))
        embedder = self.embedder
        parts = SentenceParts(
            embedder.options.modes,
            bool(embedder.options.normalize),
            embedder.max_length,
            embedder.state_width,
            embedder.sentence,
        )
        encoder = embedder.runtime.spec.folder
        bert, _ = load(encoder, BertModel)
        config = read_config(encoder).with_labels(self.texts.names)
        put_model(folder, bert, replace(config, problem_type=PROBLEMS[self.texts.task]), encoder)
        write_sentence_parts(folder, parts, self.base, layer)
        self.describe(folder, best)


# --- vectors of pairs ---


def pair_task(
    job: FineTuningJob, options: Mapping[str, Any], texts: LabelledTexts, folder: Path
) -> FullTask:
    """Return the task of a BERT whose pooled vectors are trained on pairs.

    Raises ModelError for a model with layers of its own behind the BERT.
    """
    if job.frozen:
        raise UsageError("--frozen cannot train vectors", "leave it out, or give --full")
    sentence = read_sentence(folder)
    if sentence.of_texts:
        names = ", ".join(module.kind for module in sentence.of_texts)
        raise ModelError(f"{folder}: has modules that train cannot train: {names}")
    bert = bert_folder(folder)
    start, _ = load(bert, BertModel, dtype=torch.float32)
    config = start.config
    refuse_extra(bert, config)
    chosen = chosen_options(EmbedOptions(), sentence)
    alone: list[Record] = []
    numbers = np.full((len(texts.records), 3), NONE, np.int64)
    for row, (record, target) in enumerate(texts.examples.examples):
        negative = target if isinstance(target, str) else None
        for side, text in enumerate((record.text, record.pair, negative)):
            if text is not None:
                numbers[row, side] = len(alone)
                alone.append(record._replace(text=text, pair=None))
    records = prepared(alone, "", lower=sentence.lower_case)
    items, limit, tally = tokenized(job, "embed", records, bert, config, sentence.max_length)
    method = {"method": "full", "config": config.to_dict(), "layers": job.layers}
    return FullTask(
        **settings(
            job, options, texts, folder, texts.train, **method, pooling="+".join(chosen.modes)
        ),
        objective=PairObjective(
            data=Tokens.of(items),
            held=texts.held,
            texts=numbers,
            scores=None if texts.examples.form == CONTRAST else texts.targets,
            modes=chosen.modes,
        ),
        max_length=limit,
        tally=tally,
        start=start,
        config=config,
        parts=SentenceParts(
            chosen.modes, bool(chosen.normalize), limit, config.hidden_size, sentence
        ),
    )
