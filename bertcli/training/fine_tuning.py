"""Fine-tuning as a task of the loop: examples, and a head over a BERT, or its vectors.

`LabelledTexts` reads and checks the examples. `head_task` trains all weights, `frozen_task` a head
over vectors that are computed once, `pair_task` an embedding model. Beside the model, a result has
its manifest.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions, prepared, read_sentence, settled
from bertcli.embedding.sentence_modules import IDENTITY, write_sentence_parts
from bertcli.engines.engine import Tokens
from bertcli.engines.runtime import open_tokenizer, refuse_extra, refuse_pairs, token_limit
from bertcli.errors import InputError, ModelError, UsageError, counted, option
from bertcli.evaluation.metrics import TagPredictions, answer_predictions, label_numbers
from bertcli.io.paths import sha256
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.load import load, load_tensors, save_tensors
from bertcli.models.bert import BertModel
from bertcli.models.config import BertConfig
from bertcli.models.heads import ARCHITECTURES
from bertcli.models.initial_weights import initialise
from bertcli.models.surgery import add_extra_embeddings
from bertcli.records.examples import CONTRAST, AnswerSpan, Example, Examples, read_examples
from bertcli.records.extra_ids import extra_ids
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.tasks.answer import in_windows
from bertcli.tasks.head import CLASSIFIER, COMMANDS
from bertcli.tasks.tag import tags_of, word_windows
from bertcli.tokenizing.batch import Encoded, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns
from bertcli.tokenizing.run import TokenCounts
from bertcli.training.label_notes import label_notes
from bertcli.training.loop import Objective, Ranks, TrainedTask, put_model, rebuilt
from bertcli.training.objectives import (
    NONE,
    LabelObjective,
    PairObjective,
    SpanObjective,
    TagObjective,
    VectorObjective,
    answer_of,
    token_places,
    token_tags,
)
from bertcli.training.options import FEW, FineTuningJob, TrainingDevice, settled_options
from bertcli.training.run import Checkpoints, TrainingDisplay, train_task
from bertcli.versions import __version__, versions

# --- examples ---

# Tasks whose labels are not in the data.
UNNAMED = {"regress": ["score"], "embed": [], "answer": ["LABEL_0", "LABEL_1"]}


@dataclass(frozen=True)
class LabelledTexts:
    """Examples with numbers for their labels; rows to train on and rows held out."""

    examples: Examples  # those of the evaluation file last
    names: Sequence[str]  # of the labels
    numbers: Mapping[str, int]  # of the labels, as the examples name them
    train: Any  # rows
    held: Any  # rows

    @classmethod
    def read(cls, job: FineTuningJob, readers: Sequence[Reader], seed: int) -> LabelledTexts:
        """Read the examples, and those of the evaluation file, which may have a reader too.

        Raises InputError for examples that nothing can be learnt from.
        """
        fields = tuple(dict.fromkeys(job.extra.values()))
        examples = read_examples(readers[0], job.task, fields, job.fields)
        task = examples.form.task
        if fields and task in ("answer", "embed"):
            raise UsageError(f"{option('extra')} cannot be combined with {option('task', task)}")
        names = UNNAMED.get(task, [])
        if task not in UNNAMED:
            names = sorted({label for example in examples.examples for label in example.target})
            if len(names) < (1 if task == "multilabel" else 2):
                raise InputError(
                    f"{examples.source}: labels found: {', '.join(names) or 'none'}",
                    "training needs examples of at least two labels",
                )
            if all(name.isdecimal() for name in names):
                names = sorted(names, key=int)  # equal numbers, 01 and 1, by their names
        if (job.class_weights or job.label_smoothing) and task in UNNAMED:
            raise UsageError(
                f"{option('class_weights')} and {option('label_smoothing')} have no effect on "
                f"{task}"
            )
        rows = list(examples.examples)
        if len(readers) == 1:
            train, held = parted(rows, job.eval_fraction, seed)
        else:
            rows += read_examples(readers[1], task, fields, job.fields).examples
            train, held = np.split(np.arange(len(rows)), [len(examples.examples)])
        numbers = {name: number for number, name in enumerate(names)}
        texts = cls(replace(examples, examples=rows), names, numbers, train, held)
        targets: Any = None if task in UNNAMED else texts.targets
        if len(train) < 2 or (task == "classify" and len(np.unique(targets[train])) < 2):
            raise InputError(
                f"{examples.source}: {len(train)} examples to train on, of one label",
                f"give more examples, or {option('eval_fraction', 0)}",
            )
        return texts

    @property
    def task(self) -> str:
        """What is learnt: classify, multilabel, regress, tag, answer or embed."""
        return self.examples.form.task

    @cached_property
    def records(self) -> list[Record]:
        """The texts and pairs."""
        return [example.record for example in self.examples.examples]

    @cached_property
    def targets(self) -> Any:
        """The class numbers [n], labels [n, k] of 0 and 1, scores [n], or tags of n texts.

        Tags are arrays of numbers, one for each word. InputError for a label without a number.
        """
        examples, numbers = self.examples.examples, self.numbers
        if self.task in UNNAMED:
            return np.array([example.target for example in examples], np.float32)
        targets = []
        for record, labels in examples:
            if unknown := [label for label in labels if label not in numbers]:
                raise InputError(
                    f"{record.where}: the label {unknown[0]!r} does not occur in the training data",
                    f"labels: {', '.join(numbers)}",
                )
            targets.append(np.array([numbers[label] for label in labels], np.int64))
        if self.task == "tag":
            return targets
        if self.task == "classify":
            return np.concatenate(targets)
        several = np.zeros((len(targets), len(numbers)), np.float32)
        for row, labels in zip(several, targets, strict=True):
            row[labels] = 1
        return several

    def weighing(self, job: FineTuningJob) -> dict[str, Any]:
        """Return the smoothing of labels, and their weights, [k], or None.

        Rare labels count as much as common ones. Classes: n / (k * their number), as scikit-learn's
        "balanced". Several labels: texts without the label for each that has it.
        """
        weights, count = None, len(self.names)
        if job.class_weights:
            targets: Any = [self.targets[row] for row in self.train]
            if self.task == "multilabel":
                support = sum(targets)
                weights = (len(targets) - support) / np.maximum(support, 1)
            else:
                targets = np.hstack(targets)
                support = np.bincount(targets, minlength=count)
                weights = len(targets) / (count * np.maximum(support, 1))
            weights = weights.astype(np.float32)
        return {"weights": weights, "smoothing": job.label_smoothing}

    @property
    def digest(self) -> str:
        """The sha256 of all examples and of how they are parted."""
        digest = hashlib.sha256()
        for record, target in self.examples.examples:
            values = record.text, record.pair, record.extra, target
            digest.update(repr(values).encode())
        digest.update(self.held.tobytes())
        return digest.hexdigest()


def parted(examples: Sequence[Example], fraction: float, seed: int) -> tuple[Any, Any]:
    """Split rows into those to train on and those held out, [n1] and [n2].

    Equal texts, of answers equal contexts, are on one side: texts are drawn, not examples.
    """
    numbers: dict[str, int] = {}
    texts = (
        record.pair if isinstance(target, AnswerSpan) else record.text
        for record, target in examples
    )
    groups = np.array([numbers.setdefault(str(text), len(numbers)) for text in texts])
    drawn = np.random.default_rng((seed, 1)).permutation(len(numbers))[1:]
    sizes = np.bincount(groups)[drawn]
    count = max(round(len(examples) * fraction), 1) if fraction else 0
    held = np.isin(groups, drawn[sizes.cumsum() - sizes < count])
    return np.flatnonzero(~held), np.flatnonzero(held)


def fine_tune(
    job: FineTuningJob,
    options: Mapping[str, Any],
    readers: Sequence[Reader],
    find: Callable[[], ModelFolder],
    checkpoints: Checkpoints,
    device: TrainingDevice,
    display: TrainingDisplay,
) -> None:
    """Train a model on the examples of a reader, and of another for evaluation if there is one.

    ``options`` are those of `TrainingOptions`; None is the default. ``find`` returns the model to
    begin with, once the examples are known to be sound.
    """
    seed = options.get("seed") or 0

    def open_task(ranks: Ranks) -> TrainedTask:
        texts = LabelledTexts.read(job, readers, seed)
        folder = find()
        based = replace(job, base=folder.name)
        checkpoints.refuse_inputs(job.file, job.eval, folder.path)
        frozen = job.frozen
        if frozen is None and not job.extra and texts.task not in ("tag", "answer", "embed"):
            frozen = len(texts.train) <= FEW
        if texts.task == "embed":
            task = pair_task(based, options, texts, folder)
        elif frozen:
            compute = {**asdict(device), "device": str(ranks.device)}
            task = frozen_task(based, options, texts, folder, compute, display.follow)
        else:
            task = head_task(based, options, texts, folder)
        display.warn(task.tally.truncation(task.max_length))
        display.note(task.tally.emptiness())
        to_train = [texts.examples.examples[row] for row in texts.train.tolist()]
        for note in label_notes(to_train, texts.task, weighted=job.class_weights is not None):
            display.note(note)
        return task

    train_task(open_task, checkpoints, device, display)


# --- what all tasks have ---

PROBLEMS = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}


def for_task(config: BertConfig, task: str) -> BertConfig:
    """Return a config that says what the head learnt; of scores, that they are its logits."""
    config = replace(config, problem_type=PROBLEMS.get(task))
    if task == "regress":
        activation = {"activation_fn": IDENTITY}
        config = replace(config, other={**config.other, "sentence_transformers": activation})
    return config


def task_of(
    job: FineTuningJob,
    options: Mapping[str, Any],
    texts: LabelledTexts,
    base: ModelFolder,
    rows: Any,
    method: Mapping[str, Any],
    **fields: Any,
) -> TrainedTask:
    """Return a task over ``rows``; what is chosen of its ``method`` decides the results as well."""
    numbers = settled_options(options, len(rows), frozen=method["method"] == "frozen")
    identity = {
        "task": texts.task,
        "data_sha256": texts.digest,
        "base_sha256": " ".join(map(sha256, base.encoder.require_weights().all)),
        "labels": list(texts.names),
        "training": {
            name: getattr(job, name) for name in ("max_length", "class_weights", "label_smoothing")
        },
        **method,
    }
    manifest = {
        "bertcli": __version__,
        "versions": versions("torch", "tokenizers", "numpy"),
        **{name: value for name, value in identity.items() if name != "config"},
        "examples": {"train": len(texts.train), "eval": len(texts.held)},
        "options": asdict(job) | asdict(numbers),
        "steps": numbers.steps,
    }
    return TrainedTask(options=numbers, rows=rows, identity=identity, manifest=manifest, **fields)


def whole_model(
    job: FineTuningJob,
    base: ModelFolder,
    start: Any,
    config: BertConfig,
    pooling: Mapping[str, str] = {},
    finish: Callable[[Path], None] = lambda folder: None,
) -> dict[str, Any]:
    """Return what `task_of` is told of a whole BERT, which begins as ``start``, a mapped file.

    It has a head for labels, tags or answers; or ``pooling`` makes vectors of it, which ``finish``
    writes beside it.
    """

    def build(checkpoint: Path | None) -> Any:
        """Build the model, and choose what of it is trained."""
        model = rebuilt(start, checkpoint)
        bert = model if isinstance(model, BertModel) else model.bert
        if bert is model and bert.pooler is not None:
            bert.pooler.requires_grad_(False)  # no vector is made with it
        if job.layers is not None:
            bert.embeddings.requires_grad_(False)
            for table in bert.embeddings.extra.values():
                table.requires_grad_(True)  # nothing of them is pretrained
            above = {*bert.encoder.order[job.layers :]}  # one may be used twice
            for number, layer in enumerate(bert.encoder.layer):
                layer.requires_grad_(number in above)
        return model

    put = partial(put_model, config=config, tokenizer=base.encoder.path)

    def publish(folder: Path, model: Any) -> None:
        put(folder, model)
        finish(folder)

    method = {"method": "full", "config": config.to_dict(), "layers": job.layers, **pooling}
    return {"method": method, "build": build, "put": put, "publish": publish}


# --- a head for labels, tags or answers ---


def head_task(
    job: FineTuningJob, options: Mapping[str, Any], texts: LabelledTexts, base: ModelFolder
) -> TrainedTask:
    """Tokenize the texts, and load the model with a head for their labels.

    Raises ModelError for a folder that is not a whole BERT.
    """
    torch.manual_seed(options.get("seed", 0))
    task = texts.task
    start, texts, notes = _with_head(base, texts)
    bert, extra = start.bert, job.extra
    if missing := [name for name in bert.config.extra_embeddings if name not in extra]:
        raise ModelError(
            f"{base}: the model has extra embeddings ({', '.join(missing)}), and needs their ids",
            " ".join(f"{option('extra', name)}=FIELD" for name in missing),
        )
    if extra:
        sizes = {
            name: 1 + int(max(np.max(extra_ids(row, field), initial=0) for row in texts.records))
            for name, field in extra.items()
        }
        add_extra_embeddings(bert, extra, sizes)
    config = for_task(bert.config, task)
    items, limit, tally = tokenized(job, task, texts.records, base.encoder, config)
    samples = np.array([item.sample for item in items])
    tokens = Tokens.of(items)
    rows, held = (np.flatnonzero(np.isin(samples, part)) for part in (texts.train, texts.held))
    held = held[np.argsort(tokens.lengths[held], kind="stable")]
    how = {"data": tokens, "held": held, "task": task, **texts.weighing(job)}
    objective: Objective
    if task == "answer":
        answers = [example.target for example in texts.examples.examples]
        truth = [answer.text for answer in answers]
        objective = SpanObjective(
            labels=np.array([token_places(item, answers[item.sample]) for item in items]),
            items=items,
            truth=truth,
            say=partial(answer_of, none="" in [truth[row] for row in texts.held]),
            judge=answer_predictions,
            **how,
        )
    elif task == "tag":
        names, tags = np.array(texts.names, object), texts.targets
        objective = TagObjective(
            labels=token_tags(items, tags),
            items=items,
            truth=[names[numbers].tolist() for numbers in tags],
            say=partial(tags_of, labels=texts.names),
            judge=TagPredictions,
            **how,
        )
    else:
        objective = LabelObjective(labels=texts.targets, **how)
    return task_of(
        job,
        options,
        texts,
        base,
        rows,
        objective=objective,
        notes=notes,
        max_length=limit,
        tally=tally,
        **whole_model(job, base, start, config),
    )


def _with_head(base: ModelFolder, texts: LabelledTexts) -> tuple[Any, LabelledTexts, list[str]]:
    """Load a model with a head for these labels: its own if it is for no others, else a fresh one.

    With its own head, the labels have the numbers that they have there.
    """
    config = base.config
    labels = {*texts.names}
    own = config.labels(config.num_labels)
    numbers = label_numbers(own, labels)
    task = texts.task
    kind = COMMANDS.get(task, CLASSIFIER)
    headed = kind in config.architectures
    same = headed and (numbers.keys() == labels or (task == "regress" and len(own) == 1))
    if same and task not in UNNAMED:
        texts = replace(texts, names=own, numbers=numbers)
    model, report = load(
        base, ARCHITECTURES[kind], dtype=torch.float32, fresh=True, labels=texts.names
    )
    fresh = list(report.fresh)
    if not same and task != "answer" and "classifier.weight" not in fresh:
        initialise(model.get_submodule("classifier"), config.initializer_range)
        fresh += ["classifier.weight", "classifier.bias"]
    return model, texts, [new_head(task, len(texts.names))] if fresh else []


def new_head(task: str, labels: int) -> str:
    """Return the note that a head is trained from random weights."""
    learnt = {"answer": "answers", "regress": "scores", "tag": counted(labels, "tag")}
    return f"new head for {learnt.get(task) or counted(labels, 'label')}"


def tokenized(
    job: FineTuningJob,
    task: str,
    records: Sequence[Record],
    folder: ModelFolder,
    config: BertConfig,
    most: int | None = None,
) -> tuple[list[Encoded], int, TokenCounts]:
    """Return texts as tokens, their limit, at ``most`` this, and what was truncated.

    Raises UsageError for a layer to train that the model does not have.
    """
    layers = config.num_hidden_layers
    if job.layers is not None and job.layers > layers:
        raise UsageError(
            f"{option('layers', job.layers)}: the model has {counted(layers, 'layer')}",
            f"give 0 to {layers}; {layers} trains the head alone",
        )
    tokenizer = open_tokenizer(folder, extra=True)
    limit = token_limit(config, tokenizer, job.max_length, most)
    extra = ExtraColumns(config.fields_of_extra, config.extra_embeddings)
    columns = ("input_ids", "token_type_ids", *extra.needed)
    layout = Layout(columns=columns, max_length=limit, truncation="longest_first")
    if task == "answer":
        layout = in_windows(layout, job.max_length)
    elif task == "tag":
        layout = word_windows(layout)
    batch = tokenizer.encode_records(records, layout)
    batch = extra.added(batch, tokenizer)
    refuse_pairs(batch, config)
    tally, limit = TokenCounts(), layout.max_length or limit
    tally.add(batch, limit)
    return [*batch], limit, tally


# --- a head alone, over vectors that are computed once ---

HEAD = "head.safetensors"
LEAST_SPREAD = 1e-6  # of a dimension that is scaled
SPREAD = 0.02  # of the first weights


FROZEN_NOTE = (
    "a frozen model is for bertcli and sentence-transformers; transformers would load it with a "
    f"random head ({option('frozen', False)} trains one for transformers too)"
)


def frozen_task(
    job: FineTuningJob,
    options: Mapping[str, Any],
    texts: LabelledTexts,
    folder: ModelFolder,
    compute: dict[str, Any],
    run: Callable[[RecordVectors], None],
) -> TrainedTask:
    """Return the task of a linear layer over vectors that do not change, with the model's pooling.

    The result is a sentence-transformers model that ends in a Dense layer, whose vectors are
    logits, and a classifier for bertcli. The head is trained on standardised vectors, which ``run``
    computes, and written for those of the model. UsageError for options without effect on it.
    """
    if texts.task in ("tag", "answer"):
        what = "tags of words" if texts.task == "tag" else "answers"
        raise UsageError(
            f"{option('frozen', True)} cannot learn {what}",
            f"leave it out, or give {option('frozen', False)}",
        )
    if job.layers is not None:
        raise UsageError(
            f"{option('layers')} requires {option('frozen', False)}",
            f"{option('frozen', True)} trains no layer of the model",
        )
    folder.require_encoder()  # what is trained is put behind an encoder
    embedder = Embedder.open(folder, EmbedOptions(max_length=job.max_length, **compute))
    whole = replace(embedder.options, dim=None)  # the head takes all that the modules give
    source = RecordVectors(replace(embedder, options=whole), texts.records)
    run(source)
    embedder = source.embedder
    train = source.vectors[texts.train].astype(np.float64)
    mean, deviation = train.mean(0), np.maximum(train.std(0), LEAST_SPREAD)
    chosen = embedder.chosen()
    vectors = {name: chosen[name] for name in ("pooling", "normalize", "max_length", "prompt")}

    def build(checkpoint: Path | None) -> nn.Linear:
        head = nn.Linear(len(mean), len(texts.names))
        nn.init.normal_(head.weight, std=SPREAD)
        nn.init.zeros_(head.bias)
        if checkpoint is not None:
            head.load_state_dict(load_tensors(checkpoint / HEAD))
        return head

    def put(folder: Path, model: nn.Linear) -> None:
        save_tensors(folder / HEAD, model.state_dict())

    def publish(output: Path, model: nn.Linear) -> None:
        """Write the whole sentence model: the BERT, its pooling, and the head."""
        weight = model.weight.detach().cpu().double().numpy() / deviation
        bias = model.bias.detach().cpu().double().numpy() - weight @ mean
        encoder = embedder.runtime.spec.folder
        bert, _ = load(encoder, BertModel)
        config = encoder.config.with_labels(texts.names)
        put_model(output, bert, for_task(config, texts.task), encoder.path)
        write_sentence_parts(
            output,
            embedder.options,
            folder,
            embedder.sentence,
            max_length=embedder.max_length,
            width=embedder.state_width,
            layer=(weight.astype(np.float32), bias.astype(np.float32)),
        )

    return task_of(
        job,
        options,
        texts,
        folder,
        texts.train,
        {"method": "frozen", "vectors": vectors},
        publish=publish,
        build=build,
        put=put,
        objective=VectorObjective(
            data=((source.vectors - mean) / deviation).astype(np.float32),
            held=texts.held,
            task=texts.task,
            labels=texts.targets,
            **texts.weighing(job),
        ),
        max_length=embedder.max_length,
        tally=source.tally,
        notes=[FROZEN_NOTE],
    )


# --- vectors of pairs ---


def pair_task(
    job: FineTuningJob, options: Mapping[str, Any], texts: LabelledTexts, folder: ModelFolder
) -> TrainedTask:
    """Return the task of a BERT whose pooled vectors are trained on pairs.

    Raises ModelError for a model with layers of its own behind the BERT.
    """
    if job.frozen:
        raise UsageError(
            f"{option('frozen', True)} cannot train vectors",
            f"leave it out, or give {option('frozen', False)}",
        )
    sentence = read_sentence(folder)
    if sentence.of_texts:
        names = ", ".join(module.kind for module in sentence.of_texts)
        raise ModelError(f"{folder}: has modules that train cannot train: {names}")
    bert = folder.encoder
    start, _ = load(bert, BertModel, dtype=torch.float32)
    config = start.config
    refuse_extra(bert, config)
    chosen = settled(EmbedOptions(), sentence)
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
    objective = PairObjective(
        data=Tokens.of(items),
        held=texts.held,
        texts=numbers,
        scores=None if texts.examples.form == CONTRAST else texts.targets,
        modes=chosen.modes,
    )

    def finish(output: Path) -> None:
        width = config.hidden_size
        write_sentence_parts(output, chosen, folder, sentence, max_length=limit, width=width)

    pooling = {"pooling": "+".join(chosen.modes)}
    return task_of(
        job,
        options,
        texts,
        folder,
        texts.train,
        objective=objective,
        max_length=limit,
        tally=tally,
        **whole_model(job, folder, start, config, pooling, finish),
    )
