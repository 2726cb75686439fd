"""Pretraining as a task of the loop: prepared instances, a config, and BertForPreTraining.

Only masked tokens, one of seven, go through the decoder, which is as wide as the vocabulary.
Source: BERT, section 3.1 and appendix A.2; the loss is that of
transformers' BertForPreTraining.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, inf
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.engines.engine import MODEL_COLUMNS, PackedTokens
from bertcli.errors import InputError, ModelError, UsageError, option
from bertcli.formats.row_offsets import offsets_of
from bertcli.io.paths import sha256
from bertcli.io.typed_json import read_object
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.load import load
from bertcli.models.config import BertConfig
from bertcli.models.heads import BertForPreTraining
from bertcli.models.initial_weights import initialise
from bertcli.models.surgery import add_extra_embeddings
from bertcli.tokenizing.batch import EXTRA
from bertcli.training.instances import Instances
from bertcli.training.loop import (
    Objective,
    Ranks,
    TrainedTask,
    copied_model,
    hidden_states,
    tensor,
    write_model,
)
from bertcli.training.options import INDEX, PretrainingJob, TrainingOptions

# --- losses ---


# Logits and targets: of masked tokens, [M, vocabulary] and [M], and of rows, [B, 2] and [B].
LogitsAndTargets: TypeAlias = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PretrainingObjective(Objective):
    """The losses of masked tokens and of next sentences."""

    losses: ClassVar[Sequence[str]] = ("mlm_loss", "nsp_loss")

    inputs: Instances
    held_out_instances: Instances | None = None  # None: the held-out rows are in ``inputs``

    def lengths(self, rows: Any) -> Any:
        """Return the number of tokens of each row."""
        return self.inputs.rows["lengths"][rows]

    def counts(self, rows: Any) -> Sequence[float]:
        """Return the number of masked tokens, and of rows."""
        masked_count = int(self.inputs.rows["masked_lm_counts"][rows].sum())
        return max(masked_count, 1), len(rows)

    def predict(self, model: BertForPreTraining, rows: Any) -> LogitsAndTargets:
        """Return the logits and the targets of both losses for rows of instances."""
        columns = self.inputs.rows[rows]
        lengths = columns["lengths"].astype(np.int64)
        is_masked = np.arange(self.inputs.max_predictions) < columns["masked_lm_counts"][:, None]
        is_token = np.arange(self.inputs.max_length) < lengths[:, None]
        extra_names = list(model.bert.config.extra_embeddings)
        column_names = (*MODEL_COLUMNS, *(EXTRA + name for name in extra_names))
        table = np.stack([columns[name][is_token] for name in column_names], 1)
        tokens = PackedTokens(table, offsets_of(lengths), extra_names)
        starts = tokens.offsets[:-1]
        hidden = hidden_states(model.bert, tokens)
        pooled = model.bert.pool_first(hidden.index_select(0, tensor(starts, hidden)))
        masked = (starts[:, None] + columns["masked_lm_positions"])[is_masked]
        token_logits = model.cls.predictions(hidden.index_select(0, tensor(masked, hidden)))
        pair_logits = model.cls.seq_relationship(pooled)
        token_targets = columns["masked_lm_ids"][is_masked].astype(np.int64)
        pair_targets = columns["next_sentence_labels"].astype(np.int64)
        return [
            (token_logits, tensor(token_targets, hidden)),
            (pair_logits, tensor(pair_targets, hidden)),
        ]

    def sums(self, predicted: LogitsAndTargets, rows: Any) -> Sequence[Tensor]:
        """Return both losses, summed over the masked tokens and over the rows."""
        return [
            F.cross_entropy(logits.float(), targets, reduction="sum")
            for logits, targets in predicted
        ]

    def outputs(self, predicted: LogitsAndTargets) -> Any:
        """Return the number of targets and of correct predictions for each loss, int [2, 2]."""
        counts = []
        for logits, targets in predicted:
            correct = (logits.argmax(-1) == targets).sum().item()
            counts.append([len(targets), correct])
        return np.array(counts)

    def metrics(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return the accuracies."""
        (masked, correct_tokens), (rows, correct_pairs) = sum(outputs).tolist()
        return {
            "masked_accuracy": correct_tokens / max(masked, 1),
            "next_sentence_accuracy": correct_pairs / rows,
            "masked": masked,
            "rows": rows,
        }

    def evaluate(
        self, model: Any, batch_size: int, dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Return losses and metrics on the held-out rows, with the perplexity."""
        held_out = replace(self, inputs=self.held_out_instances or self.inputs)
        metrics = super(PretrainingObjective, held_out).evaluate(model, batch_size, dtype)
        metrics["perplexity"] = exp(min(metrics["eval_mlm_loss"], 700))
        return metrics


# --- the task ---


def pretraining_task(job: PretrainingJob, options: TrainingOptions, ranks: Ranks) -> TrainedTask:
    """Return the task of BertForPreTraining on prepared instances; it keeps the last weights.

    Raises InputError or ModelError for unsuitable instances or an unsuitable config.
    """
    instances = Instances(job.data)
    if job.extra:
        if not job.extra.items() <= instances.extra_fields.items():
            raise UsageError(
                f"{option('extra')}: {instances.folder} has the ids of "
                f"{instances.extra_fields or 'none'}"
            )
        instances.extra_embeddings = {name: instances.extra_embeddings[name] for name in job.extra}
        instances.extra_fields = job.extra
    eval_instances = Instances(job.eval_dir) if job.eval_dir else None
    if ranks.is_first:
        instances.verify()
        if eval_instances is not None:
            eval_instances.verify()
    if eval_instances is None:
        # The last rows, not random ones, because differently masked copies of a text are adjacent.
        min_count = min(1, len(instances) - 1) if options.eval_fraction else 0
        train_count = len(instances) - max(min_count, int(len(instances) * options.eval_fraction))
        rows = np.arange(train_count)
        held_out = np.arange(train_count, len(instances))
    else:
        rows = np.arange(len(instances))
        held_out = np.arange(len(eval_instances))
        if instances.vocab_size != eval_instances.vocab_size:
            raise InputError(
                f"{eval_instances.folder}: its tokenizer has {eval_instances.vocab_size} tokens, "
                f"that of {instances.folder} has {instances.vocab_size}",
                "prepare both with the same tokenizer",
            )
        for name in instances.extra_embeddings:
            if name not in eval_instances.extra_embeddings:
                raise InputError(
                    f"{eval_instances.folder}: the instances have no ids of the extra embedding "
                    f"{name}",
                    f"prepare them with {option('extra', name)}=FIELD",
                )
    config = training_config(job, instances, eval_instances or instances)
    weights = job.init and ModelFolder(job.init).encoder.require_weights().all_files

    torch.manual_seed(options.seed)
    if job.init:
        initial_model, _ = load(job.init, BertForPreTraining, dtype=torch.float32)
        add_extra_embeddings(initial_model.bert, config.extra_fields, config.extra_embeddings)
    else:
        initial_model = BertForPreTraining(config)
        initialise(initial_model, config.initializer_range)
    write = partial(write_model, config=config, tokenizer=instances.folder)
    return TrainedTask(
        options=options.with_steps(len(rows)),
        objective=PretrainingObjective(instances, held_out, eval_instances),
        rows=rows,
        identity={
            "config": config.to_dict(),
            "instances_sha256": sha256(instances.folder / INDEX),
            "init_sha256": weights and " ".join(map(sha256, weights)),
        },
        build=partial(copied_model, initial_model),
        write_checkpoint=write,
        publish=write,
        keeps_best=False,
    )


# --- the config: of a file, of a named size, or of a model ---

# Layers and hidden size. Source: Well-Read Students Learn Better, table 1; base: BERT, section 3.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}
SHAPE_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
HEAD_SIZE = 64
FEED_FORWARD_RATIO = 4  # of the feed-forward size to the hidden size
VOCABULARY_MULTIPLE = 128  # vocab_size may be rounded up to a multiple of up to this


def training_config(
    job: PretrainingJob, instances: Instances, eval_instances: Instances
) -> BertConfig:
    """Return the config to train, with the extra embeddings of the instances.

    Their sizes are those of the config, or else as large as the ids need. Raises ModelError for a
    config that cannot be trained on the instances.
    """
    source = str(job.init or job.config)
    if job.init:
        config = ModelFolder(job.init).config
    else:
        config = _config_by_name(job.config or "", instances)
    vocab_size = config.vocab_size
    token_count = instances.vocab_size
    problems = [
        (
            "BertForPreTraining" not in config.family.classes.values(),
            "pretraining predicts words and whether sentences follow each other; "
            f"{config.family.title} has no such head",
        ),
        (
            not token_count <= vocab_size < token_count + VOCABULARY_MULTIPLE,
            f"vocab_size {vocab_size} does not match the instances: their tokenizer has "
            f"{token_count} tokens",
        ),
        (
            instances.max_length > config.most_tokens,
            f"max_position_embeddings {config.max_position_embeddings} is less than the "
            f"{instances.max_length} tokens of an instance",
        ),
        (
            config.type_vocab_size < 2,
            f"type_vocab_size {config.type_vocab_size}, but sentence pairs need 2",
        ),
        (
            config.is_decoder or config.add_cross_attention,
            "decoders are not supported in pretraining",
        ),
        (
            config.hidden_size % config.num_attention_heads,
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads}",
        ),
    ]
    for is_unsuitable, problem in problems:
        if is_unsuitable:
            raise ModelError(
                f"{source}: {problem}",
                f"fix the config, or prepare instances for this model (-m, {option('max_length')})",
            )
    sizes = {}
    for name, size in instances.extra_embeddings.items():
        sizes[name] = max(size, eval_instances.extra_embeddings[name])
    for name, size in config.extra_embeddings.items():
        if sizes.get(name, inf) > size:
            raise ModelError(
                f"{source}: the extra embedding {name} has {size} ids, and the instances "
                f"{sizes.get(name, 'none')}",
                f"prepare the instances with {option('extra', name)}=FIELD, and ids below {size}",
            )
    embeddings = sizes | dict(config.extra_embeddings)
    return replace(config, extra_embeddings=embeddings, extra_fields=instances.extra_fields)


def _config_by_name(name: str, instances: Instances) -> BertConfig:
    """Return the config of a named size or of a file.

    vocab_size and pad_token_id are by default those of the instances.
    """
    defaults: dict[str, Any] = {
        "vocab_size": instances.vocab_size,
        "pad_token_id": instances.pad_token_id,
    }
    if name in SIZES:
        layers, hidden = SIZES[name]
        shape = (hidden, layers, hidden // HEAD_SIZE, FEED_FORWARD_RATIO * hidden)
        return BertConfig(**(defaults | dict(zip(SHAPE_KEYS, shape, strict=True))))
    if not os.path.isfile(name):
        raise ModelError(
            f"{option('config', name)}: file not found",
            f"give a config.json, or one of {', '.join(SIZES)}",
        )
    try:
        values = read_object(Path(name))
        if values.keys().isdisjoint(SHAPE_KEYS):  # the defaults are those of bert-base
            raise ModelError(f"{name}: names none of {', '.join(SHAPE_KEYS)}")
        return BertConfig.from_dict(defaults | values, name)
    except ModelError as error:
        raise ModelError(
            str(error), f"fix it, or give {option('config')} one of {', '.join(SIZES)}"
        ) from None
