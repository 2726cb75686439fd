"""Pretraining as a task of the loop: prepared instances, a config, and BertForPreTraining.

Only the masked tokens go through the decoder: it is as wide as the vocabulary, and six tokens of
seven are not predicted. Source: BERT, section 3.1 and appendix A.2; the loss is that of
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

from bertcli.engines.engine import COLUMNS, Tokens
from bertcli.errors import InputError, ModelError, UsageError, option
from bertcli.io.paths import sha256
from bertcli.io.typed_json import read_object
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.load import load
from bertcli.models.config import BertConfig
from bertcli.models.heads import BertForPreTraining
from bertcli.models.initial_weights import initialise
from bertcli.models.surgery import add_extra_embeddings
from bertcli.tokenizing.batch import EXTRA
from bertcli.tokenizing.ragged import offsets_of
from bertcli.training.instances import Instances
from bertcli.training.loop import Objective, Ranks, TrainedTask, put_model, rebuilt, states, tensor
from bertcli.training.options import INDEX, PretrainingJob, TrainingOptions

# --- losses ---


# Logits with their targets, of `M` masked tokens, [M, words of the vocabulary] and [M], and of `B`
# rows, [B, 2] and [B].
Predicted: TypeAlias = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PretrainingObjective(Objective):
    """Masked words and next sentences of prepared instances."""

    losses: ClassVar[Sequence[str]] = ("mlm_loss", "nsp_loss")

    data: Instances
    others: Instances | None = None  # of the rows held out, where those are not of ``data``

    def lengths(self, rows: Any) -> Any:
        """Return the number of tokens of each row."""
        return self.data.rows["lengths"][rows]

    def counts(self, rows: Any) -> Sequence[float]:
        """Return the number of masked tokens, and of rows."""
        return max(int(self.data.rows["masked_lm_counts"][rows].sum()), 1), len(rows)

    def predict(self, model: BertForPreTraining, rows: Any) -> Predicted:
        """Run the model on rows of instances."""
        columns = self.data.rows[rows]
        lengths = columns["lengths"].astype(np.int64)
        chosen = np.arange(self.data.max_predictions) < columns["masked_lm_counts"][:, None]
        real = np.arange(self.data.max_length) < lengths[:, None]
        extra = [*model.bert.config.extra_embeddings]
        names = (*COLUMNS, *(EXTRA + name for name in extra))
        table = np.stack([columns[name][real] for name in names], 1)
        tokens = Tokens(table, offsets_of(lengths), extra)
        starts, hidden = tokens.offsets[:-1], states(model.bert, tokens)
        pooled = model.bert.pool_first(hidden.index_select(0, tensor(starts, hidden)))
        masked = (starts[:, None] + columns["masked_lm_positions"])[chosen]
        words = model.cls.predictions(hidden.index_select(0, tensor(masked, hidden)))
        follows = model.cls.seq_relationship(pooled)
        targets = columns["masked_lm_ids"][chosen], columns["next_sentence_labels"]
        return [
            (logits, tensor(truth.astype(np.int64), hidden))
            for logits, truth in zip((words, follows), targets, strict=True)
        ]

    def sums(self, predicted: Predicted, rows: Any) -> Sequence[Tensor]:
        """Return both losses, summed over the masked tokens and over the rows."""
        return [F.cross_entropy(x.float(), truth, reduction="sum") for x, truth in predicted]

    def outputs(self, predicted: Predicted) -> Any:
        """Return how many targets some rows have of each loss, and how many are predicted."""
        return np.array(
            [[len(truth), (logits.argmax(-1) == truth).sum().item()] for logits, truth in predicted]
        )

    def metrics(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return accuracies."""
        (masked, words), (rows, follows) = sum(outputs).tolist()
        return {
            "masked_accuracy": words / max(masked, 1),
            "next_sentence_accuracy": follows / rows,
            "masked": masked,
            "rows": rows,
        }

    def evaluate(
        self, model: Any, batch_size: int, dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Return the numbers of a model on the rows held out, and its perplexity."""
        judging = replace(self, data=self.others or self.data)
        metrics = super(PretrainingObjective, judging).evaluate(model, batch_size, dtype)
        return {**metrics, "perplexity": exp(min(metrics["eval_mlm_loss"], 700))}


# --- the task ---


def pretraining_task(job: PretrainingJob, options: TrainingOptions, ranks: Ranks) -> TrainedTask:
    """Return the task of BertForPreTraining on prepared instances; its last weights are the result.

    Raises InputError or ModelError for instances, or a config, that cannot be trained.
    """
    data = Instances(job.data)
    if job.extra:
        if not job.extra.items() <= data.extra_fields.items():
            raise UsageError(
                f"{option('extra')}: {data.folder} has the ids of {data.extra_fields or 'none'}"
            )
        data.extra_embeddings = {name: data.extra_embeddings[name] for name in job.extra}
        data.extra_fields = job.extra
    other = Instances(job.eval_dir) if job.eval_dir else None
    for instances in filter(None, (data, other) if ranks.first else ()):
        instances.verify()
    if other is None:
        # The last ones, not random ones: copies of a text masked in other places are neighbours.
        least = min(1, len(data) - 1) if options.eval_fraction else 0
        cut = len(data) - max(least, int(len(data) * options.eval_fraction))
        rows, held = np.arange(cut), np.arange(cut, len(data))
    else:
        rows, held = np.arange(len(data)), np.arange(len(other))
        if data.vocab_size != other.vocab_size:
            raise InputError(
                f"{other.folder}: its tokenizer has {other.vocab_size} tokens, that of "
                f"{data.folder} has {data.vocab_size}",
                "prepare both with the same tokenizer",
            )
        for name in data.extra_embeddings:
            if name not in other.extra_embeddings:
                raise InputError(
                    f"{other.folder}: the instances have no ids of the extra embedding {name}",
                    f"prepare them with {option('extra', name)}=FIELD",
                )
    config = config_of(job, data, other or data)
    weights = job.init and ModelFolder(job.init).encoder.require_weights().all

    torch.manual_seed(options.seed)
    if job.init:
        start, _ = load(job.init, BertForPreTraining, dtype=torch.float32)
        add_extra_embeddings(start.bert, config.extra_fields, config.extra_embeddings)
    else:
        start = BertForPreTraining(config)
        initialise(start, config.initializer_range)
    put = partial(put_model, config=config, tokenizer=data.folder)
    return TrainedTask(
        options=options.settled(len(rows)),
        objective=PretrainingObjective(data, held, other),
        rows=rows,
        identity={
            "config": config.to_dict(),
            "instances_sha256": sha256(data.folder / INDEX),
            "init_sha256": weights and " ".join(map(sha256, weights)),
        },
        build=partial(rebuilt, start),
        put=put,
        publish=put,
        keeps_best=False,
    )


# --- the config: a config.json, a named size, or that of a model ---

# Layers and hidden size. Source: Well-Read Students Learn Better, table 1; base: BERT, section 3.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
HEAD, WIDER = 64, 4  # the width of a head, and of the feed-forward layer in hidden sizes
ROUNDING = 128  # an embedding may have as many rows more as make it a multiple of up to this


def config_of(job: PretrainingJob, data: Instances, held: Instances) -> BertConfig:
    """Return the config to train, with the extra embeddings of the instances.

    Sizes of those are those of the config, else what the ids need. Raises ModelError for a config
    that cannot be trained on the instances.
    """
    source = str(job.init or job.config)
    config = ModelFolder(job.init).config if job.init else _named(job.config or "", data)
    size, tokens = config.vocab_size, data.vocab_size
    refusals = [
        (
            "BertForPreTraining" not in config.family.classes.values(),
            "pretraining predicts words and whether sentences follow each other; "
            f"{config.family.title} has no such head",
        ),
        (
            not tokens <= size < tokens + ROUNDING,
            f"vocab_size {size} does not match the instances: their tokenizer has {tokens} tokens",
        ),
        (
            data.max_length > config.most_tokens,
            f"max_position_embeddings {config.max_position_embeddings} is less than the "
            f"{data.max_length} tokens of an instance",
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
    for refused, problem in refusals:
        if refused:
            raise ModelError(
                f"{source}: {problem}",
                f"fix the config, or prepare instances for this model (-m, {option('max_length')})",
            )
    sizes = {
        name: max(size, held.extra_embeddings[name]) for name, size in data.extra_embeddings.items()
    }
    for name, size in config.extra_embeddings.items():
        if sizes.get(name, inf) > size:
            raise ModelError(
                f"{source}: the extra embedding {name} has {size} ids, and the instances "
                f"{sizes.get(name, 'none')}",
                f"prepare the instances with {option('extra', name)}=FIELD, and ids below {size}",
            )
    embeddings = {**sizes, **config.extra_embeddings}
    return replace(config, extra_embeddings=embeddings, extra_fields=data.extra_fields)


def _named(name: str, data: Instances) -> BertConfig:
    """Return a size, or a config in a file; vocab_size and pad_token_id may be missing there."""
    ids: dict[str, Any] = {"vocab_size": data.vocab_size, "pad_token_id": data.pad_token_id}
    if name in SIZES:
        layers, hidden = SIZES[name]
        shape = (hidden, layers, hidden // HEAD, WIDER * hidden)
        return BertConfig(**{**ids, **dict(zip(SHAPE, shape, strict=True))})
    if not os.path.isfile(name):
        raise ModelError(
            f"{option('config', name)}: file not found",
            f"give a config.json, or one of {', '.join(SIZES)}",
        )
    try:
        values = read_object(Path(name))
        if values.keys().isdisjoint(SHAPE):  # the defaults are those of bert-base
            raise ModelError(f"{name}: names none of {', '.join(SHAPE)}")
        return BertConfig.from_dict({**ids, **values}, name)
    except ModelError as bad:
        raise ModelError(
            str(bad), f"fix it, or give {option('config')} one of {', '.join(SIZES)}"
        ) from None
