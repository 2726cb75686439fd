"""Fine-tuning: a learning task and its examples as a task of the training loop.

`head_task` trains a model with a head, `frozen_task` only a head over vectors that are computed
once, `pair_task` an embedding model. A result has a manifest.json beside the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.options import (
    EmbedOptions,
    prepare_records,
    read_sentence_settings,
    resolve_options,
)
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.embedding.sentence_modules import write_sentence_files
from bertcli.engines.engine import PackedTokens
from bertcli.engines.runtime import (
    open_tokenizer,
    refuse_extra_embeddings,
    refuse_pairs,
    token_limit,
)
from bertcli.errors import ModelError, UsageError, counted, option
from bertcli.io.paths import sha256
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.load import load, load_tensors, save_tensors
from bertcli.models.bert import BertModel
from bertcli.models.config import BertConfig
from bertcli.models.heads import ARCHITECTURES
from bertcli.models.initial_weights import initialise
from bertcli.models.surgery import add_extra_embeddings
from bertcli.records.extra_ids import extra_ids
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.tasks.labels import label_numbers
from bertcli.tasks.learning import (
    HeadLearningTask,
    LearningTask,
    PairLearningTask,
    TextLearningTask,
    TokenLearningTask,
)
from bertcli.tokenizing.batch import Encoded, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns
from bertcli.tokenizing.run import TokenCounts
from bertcli.training.label_notes import label_notes
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.loop import Objective, Ranks, TrainedTask, copied_model, write_model
from bertcli.training.objectives import (
    NO_TEXT,
    PairObjective,
    TextObjective,
    TokenObjective,
    VectorObjective,
)
from bertcli.training.options import (
    MAX_FROZEN_EXAMPLES,
    FineTuningJob,
    TrainingDevice,
    fine_tuning_options,
)
from bertcli.training.run import Checkpoints, TrainingDisplay, train_task
from bertcli.versions import __version__, versions


def fine_tune(
    job: FineTuningJob,
    options: Mapping[str, Any],
    readers: Sequence[Reader],
    find_base: Callable[[], ModelFolder],
    checkpoints: Checkpoints,
    device: TrainingDevice,
    display: TrainingDisplay,
) -> None:
    """Train a model on the examples of the first reader; evaluate on those of the second, if any.

    ``options`` are those of `TrainingOptions`; None is the default. ``find_base`` returns the model
    to start from; it is called after the examples have been validated.
    """
    seed = options.get("seed") or 0

    def open_task(ranks: Ranks) -> TrainedTask:
        texts = LabelledTexts.read(job, readers, seed)
        folder = find_base()
        job_with_base = replace(job, base=folder.name)
        checkpoints.refuse_inputs(job.file, job.eval, folder.path)
        learning_task = texts.task
        if job.frozen and learning_task.impossible_if_frozen:
            raise UsageError(
                f"{option('frozen', True)} cannot {learning_task.impossible_if_frozen}",
                f"leave it out, or give {option('frozen', False)}",
            )
        if isinstance(learning_task, PairLearningTask):
            task = pair_task(job_with_base, options, texts, folder)
        elif trains_head_alone(job, texts):
            compute = {**asdict(device), "device": str(ranks.device)}
            task = frozen_task(job_with_base, options, texts, folder, compute, display.follow)
        else:
            task = head_task(job_with_base, options, texts, folder)
        display.warn(task.tally.truncation(task.max_length))
        display.note(task.tally.emptiness())
        train_examples = [texts.examples.examples[row] for row in texts.train_rows.tolist()]
        weighted = job.class_weights is not None
        for note in label_notes(train_examples, learning_task.name, weighted=weighted):
            display.note(note)
        return task

    train_task(open_task, checkpoints, device, display)


def trains_head_alone(job: FineTuningJob, texts: LabelledTexts) -> bool:
    """Return True to freeze the model: if requested, or by default for few examples."""
    if job.frozen is not None:
        return job.frozen
    if job.extra or texts.task.impossible_if_frozen:
        return False
    return len(texts.train_rows) <= MAX_FROZEN_EXAMPLES


# --- common to all tasks ---


def training_task(
    job: FineTuningJob,
    options: Mapping[str, Any],
    texts: LabelledTexts,
    base: ModelFolder,
    rows: Any,
    method: Mapping[str, Any],
    **fields: Any,
) -> TrainedTask:
    """Return a task over ``rows``, with its options, identity and manifest.

    The options of the training ``method`` are part of the identity. ``fields`` are the other
    fields of `TrainedTask`.
    """
    training_options = fine_tuning_options(options, len(rows), frozen=method["method"] == "frozen")
    identity = {
        "task": texts.task.name,
        "data_sha256": texts.digest,
        "base_sha256": " ".join(map(sha256, base.encoder.require_weights().all_files)),
        "labels": list(texts.labels),
        "training": {
            name: getattr(job, name) for name in ("max_length", "class_weights", "label_smoothing")
        },
        **method,
    }
    manifest = {
        "bertcli": __version__,
        "versions": versions("torch", "tokenizers", "numpy"),
        **{name: value for name, value in identity.items() if name != "config"},
        "examples": {"train": len(texts.train_rows), "eval": len(texts.held_out_rows)},
        "options": asdict(job) | asdict(training_options),
        "steps": training_options.steps,
    }
    return TrainedTask(
        options=training_options, rows=rows, identity=identity, manifest=manifest, **fields
    )


def full_training(
    job: FineTuningJob,
    base: ModelFolder,
    initial_model: Any,
    config: BertConfig,
    pooling: Mapping[str, str] = {},
    write_pooling: Callable[[Path], None] = lambda folder: None,
) -> dict[str, Any]:
    """Return the keyword arguments of `training_task` for training the encoder.

    The weights of ``initial_model`` are a mapped file. The model has a head for labels, tags or
    answers; or, with ``pooling``, it returns vectors, and ``write_pooling`` writes the files of the
    pooling.
    """

    def build(checkpoint: Path | None) -> Any:
        """Build the model and select the weights to train."""
        model = copied_model(initial_model, checkpoint)
        bert = model if isinstance(model, BertModel) else model.bert
        if bert is model and bert.pooler is not None:
            bert.pooler.requires_grad_(False)  # vectors do not use it
        if job.layers is not None:
            bert.embeddings.requires_grad_(False)
            for table in bert.embeddings.extra.values():
                table.requires_grad_(True)  # extra embeddings are not pretrained
            trained_layers = set(bert.encoder.order[job.layers :])  # ALBERT repeats layers
            for number, layer in enumerate(bert.encoder.layer):
                layer.requires_grad_(number in trained_layers)
        return model

    write_checkpoint = partial(write_model, config=config, tokenizer=base.encoder.path)

    def publish(folder: Path, model: Any) -> None:
        write_checkpoint(folder, model)
        write_pooling(folder)

    method = {"method": "full", "config": config.to_dict(), "layers": job.layers, **pooling}
    return {
        "method": method,
        "build": build,
        "write_checkpoint": write_checkpoint,
        "publish": publish,
    }


# --- a head for labels, tags or answers ---


def head_task(
    job: FineTuningJob, options: Mapping[str, Any], texts: LabelledTexts, base: ModelFolder
) -> TrainedTask:
    """Prepare a training: load the model with a head, tokenize the texts, hold some out.

    Sets torch's seed. Raises ModelError for a folder that is not a complete BERT.
    """
    torch.manual_seed(options.get("seed", 0))
    task = texts.task
    assert isinstance(task, HeadLearningTask)
    initial_model, texts, notes = _load_with_head(base, task, texts)
    bert = initial_model.bert
    extra_fields = job.extra
    missing = [name for name in bert.config.extra_embeddings if name not in extra_fields]
    if missing:
        raise ModelError(
            f"{base}: the model has extra embeddings ({', '.join(missing)}), and needs their ids",
            " ".join(f"{option('extra', name)}=FIELD" for name in missing),
        )
    if extra_fields:
        sizes = {}
        for name, field in extra_fields.items():
            largest_ids = [np.max(extra_ids(record, field), initial=0) for record in texts.records]
            sizes[name] = 1 + int(max(largest_ids))
        add_extra_embeddings(bert, extra_fields, sizes)
    config = task.configured(bert.config)
    windows, limit, tally = tokenize_records(job, task, texts.records, base.encoder, config)
    samples = np.array([window.sample for window in windows])
    tokens = PackedTokens.of(windows)
    rows = np.flatnonzero(np.isin(samples, texts.train_rows))
    held_out = np.flatnonzero(np.isin(samples, texts.held_out_rows))
    held_out = held_out[np.argsort(tokens.lengths[held_out], kind="stable")]
    loss_options = texts.loss_options(task, job)
    objective: Objective
    if isinstance(task, TokenLearningTask):
        objective = TokenObjective(
            task=task,
            inputs=tokens,
            held_out=held_out,
            targets=task.window_targets(windows, texts.targets),
            windows=windows,
            metric_targets=task.metric_targets(texts.targets, texts.labels),
            labels=texts.labels,
            **loss_options,
        )
    else:
        assert isinstance(task, TextLearningTask)
        objective = TextObjective(
            task=task, inputs=tokens, held_out=held_out, targets=texts.targets, **loss_options
        )
    return training_task(
        job,
        options,
        texts,
        base,
        rows,
        objective=objective,
        notes=notes,
        max_length=limit,
        tally=tally,
        **full_training(job, base, initial_model, config),
    )


def _load_with_head(
    base: ModelFolder, task: HeadLearningTask, texts: LabelledTexts
) -> tuple[Any, LabelledTexts, list[str]]:
    """Load a model with a head for these labels, and return it with the texts and notes.

    The model's own head is kept if it has the same labels, whose ids are then used; otherwise the
    head is new.
    """
    config = base.config
    labels = set(texts.labels)
    keeps_head = task.keeps_head(config, labels)
    if keeps_head and task.has_named_labels:
        model_labels = config.labels(config.num_labels)
        label_ids = label_numbers(model_labels, labels)
        texts = replace(texts, labels=model_labels, label_ids=label_ids)
    model, report = load(
        base,
        ARCHITECTURES[task.architecture],
        dtype=torch.float32,
        fresh=True,
        labels=texts.labels,
    )
    is_new = bool(report.fresh)
    if not keeps_head and "classifier.weight" not in report.fresh:
        initialise(model.get_submodule("classifier"), config.initializer_range)
        is_new = True
    notes = [f"new head for {task.outputs_of_head(len(texts.labels))}"] if is_new else []
    return model, texts, notes


def tokenize_records(
    job: FineTuningJob,
    task: LearningTask,
    records: Sequence[Record],
    folder: ModelFolder,
    config: BertConfig,
    max_limit: int | None = None,
) -> tuple[list[Encoded], int, TokenCounts]:
    """Return the tokens of texts, the token limit (at most ``max_limit``) and truncation counts.

    Raises UsageError if the job trains more layers than the model has.
    """
    layers = config.num_hidden_layers
    if job.layers is not None and job.layers > layers:
        raise UsageError(
            f"{option('layers', job.layers)}: the model has {counted(layers, 'layer')}",
            f"give 0 to {layers}; {layers} trains the head alone",
        )
    tokenizer = open_tokenizer(folder, reads_extra_ids=True)
    limit = token_limit(config, tokenizer, job.max_length, max_limit)
    extra_columns = ExtraColumns(config.fields_of_extra, config.extra_embeddings)
    columns = ("input_ids", "token_type_ids", *extra_columns.needed_columns)
    layout = Layout(columns=columns, max_length=limit, truncation="longest_first")
    layout = task.layout(layout, job.max_length)
    batch = tokenizer.encode_records(records, layout)
    batch = extra_columns.add_to(batch, tokenizer)
    refuse_pairs(batch, config)
    tally = TokenCounts()
    limit = layout.max_length or limit
    tally.add(batch, limit)
    return list(batch), limit, tally


# --- only a head, over vectors that are computed once ---

HEAD_FILE = "head.safetensors"
MIN_DEVIATION = 1e-6  # lower bound of the standard deviations that vectors are divided by
INITIAL_DEVIATION = 0.02  # standard deviation of the initial weights


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
    compute_vectors: Callable[[RecordVectors], object],
) -> TrainedTask:
    """Return the task of a linear layer over the frozen vectors of a model with its pooling.

    The result is a sentence-transformers model that ends in a Dense layer, whose vectors are
    logits, and a classifier for bertcli. ``compute_vectors`` runs the model. The head is trained on
    standardised vectors, and converted for the original vectors when it is written. Raises
    UsageError for options that have no effect on a head.
    """
    task = texts.task
    assert isinstance(task, TextLearningTask)
    if job.layers is not None:
        raise UsageError(
            f"{option('layers')} requires {option('frozen', False)}",
            f"{option('frozen', True)} trains no layer of the model",
        )
    folder.require_encoder()  # the head is added behind an encoder
    embedder = RecordEmbedder.open(folder, EmbedOptions(max_length=job.max_length, **compute))
    full_size = replace(embedder.options, dim=None)  # the head takes vectors of full size
    run = RecordVectors(replace(embedder, options=full_size), texts.records)
    compute_vectors(run)
    embedder = run.embedder
    train_vectors = run.vectors[texts.train_rows].astype(np.float64)
    mean = train_vectors.mean(0)
    deviation = np.maximum(train_vectors.std(0), MIN_DEVIATION)
    chosen = embedder.vector_settings()
    vector_options = {
        name: chosen[name] for name in ("pooling", "normalize", "max_length", "prompt")
    }

    def build(checkpoint: Path | None) -> nn.Linear:
        head = nn.Linear(len(mean), len(texts.labels))
        nn.init.normal_(head.weight, std=INITIAL_DEVIATION)
        nn.init.zeros_(head.bias)
        if checkpoint is not None:
            head.load_state_dict(load_tensors(checkpoint / HEAD_FILE))
        return head

    def write_checkpoint(folder: Path, model: nn.Linear) -> None:
        save_tensors(folder / HEAD_FILE, model.state_dict())

    def publish(output: Path, model: nn.Linear) -> None:
        """Write the sentence-transformers model: the BERT, its pooling and the head."""
        weight = model.weight.detach().cpu().double().numpy() / deviation
        bias = model.bias.detach().cpu().double().numpy() - weight @ mean
        encoder = embedder.runtime.spec.folder
        bert, _ = load(encoder, BertModel)
        config = encoder.config.with_labels(texts.labels)
        write_model(output, bert, task.configured(config), encoder.path)
        write_sentence_files(
            output,
            embedder.options,
            folder,
            embedder.sentence,
            max_length=embedder.max_length,
            width=embedder.state_width,
            layer=(weight.astype(np.float32), bias.astype(np.float32)),
        )

    return training_task(
        job,
        options,
        texts,
        folder,
        texts.train_rows,
        {"method": "frozen", "vectors": vector_options},
        publish=publish,
        build=build,
        write_checkpoint=write_checkpoint,
        objective=VectorObjective(
            inputs=((run.vectors - mean) / deviation).astype(np.float32),
            held_out=texts.held_out_rows,
            task=task,
            targets=texts.targets,
            **texts.loss_options(task, job),
        ),
        max_length=embedder.max_length,
        tally=run.tally,
        notes=[FROZEN_NOTE],
    )


# --- vectors of pairs ---


def pair_task(
    job: FineTuningJob, options: Mapping[str, Any], texts: LabelledTexts, folder: ModelFolder
) -> TrainedTask:
    """Return the task of a BERT whose pooled vectors are trained on pairs.

    Raises ModelError for a model with additional layers behind the BERT.
    """
    task = texts.task
    assert isinstance(task, PairLearningTask)
    sentence = read_sentence_settings(folder)
    if sentence.of_texts:
        names = ", ".join(module.class_name for module in sentence.of_texts)
        raise ModelError(f"{folder}: has modules that train cannot train: {names}")
    bert = folder.encoder
    initial_model, _ = load(bert, BertModel, dtype=torch.float32)
    config = initial_model.config
    refuse_extra_embeddings(bert, config)
    chosen = resolve_options(EmbedOptions(), sentence)
    single_texts: list[Record] = []  # each text of each example
    text_rows = np.full((len(texts.records), 3), NO_TEXT, np.int64)  # their indexes, by example
    for row, (record, target) in enumerate(texts.examples.examples):
        for column, text in enumerate((record.text, record.pair, task.negative(target))):
            if text is not None:
                text_rows[row, column] = len(single_texts)
                single_texts.append(record._replace(text=text, pair=None))
    records = prepare_records(single_texts, "", lower=sentence.lower_case)
    items, limit, tally = tokenize_records(job, task, records, bert, config, sentence.max_length)
    objective = PairObjective(
        task=task,
        inputs=PackedTokens.of(items),
        held_out=texts.held_out_rows,
        texts=text_rows,
        targets=texts.targets,
        modes=chosen.modes,
    )

    def write_pooling(output: Path) -> None:
        width = config.hidden_size
        write_sentence_files(output, chosen, folder, sentence, max_length=limit, width=width)

    pooling = {"pooling": "+".join(chosen.modes)}
    return training_task(
        job,
        options,
        texts,
        folder,
        texts.train_rows,
        objective=objective,
        max_length=limit,
        tally=tally,
        **full_training(job, folder, initial_model, config, pooling, write_pooling),
    )
