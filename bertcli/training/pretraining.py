"""Pretraining as a task of the loop: prepared instances, a config, and BertForPreTraining.

Only the masked tokens go through the decoder: it is as wide as the vocabulary, and six tokens of
seven are not predicted. Source: BERT, section 3.1 and appendix A.2; the loss is that of
transformers' BertForPreTraining.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import bert_folder, read_config, require_weights
from bertcli.errors import InputError, UsageError
from bertcli.files.digests import sha256
from bertcli.models.config import BertConfig
from bertcli.models.heads import BertForPreTraining
from bertcli.models.surgery import add_extra_embeddings, initialise
from bertcli.training import configuration
from bertcli.training.batches import (
    Columns,
    MaskedBatch,
    collate,
    held_out,
    in_batches,
    parts,
    read,
)
from bertcli.training.checkpoints import put_model
from bertcli.training.objective import Objective, TrainedTask, states, tensor
from bertcli.training.options import PretrainingJob, TrainingOptions
from bertcli.training.ranks import Ranks
from bertcli.training.shards import INDEX, Instances


class Predicted(NamedTuple):
    """Logits with their targets. `M` masked tokens, `B` rows, `V` words of the vocabulary."""

    word_logits: Tensor  # [M, V]
    words: Tensor  # [M]
    follows_logits: Tensor  # [B, 2]
    follows: Tensor  # [B]

    def losses(self) -> tuple[Tensor, Tensor]:
        """Sum both losses: over the masked tokens, and over the rows."""
        words = F.cross_entropy(self.word_logits.float(), self.words, reduction="sum")
        follows = F.cross_entropy(self.follows_logits.float(), self.follows, reduction="sum")
        return words, follows


def predict(model: BertForPreTraining, batch: MaskedBatch, device: torch.device) -> Predicted:
    """Run the model on a batch."""
    hidden = states(model.bert, batch.tokens, device)
    pooled = model.bert.pooler(hidden.index_select(0, tensor(batch.tokens.starts, device)))
    return Predicted(
        model.cls.predictions(hidden.index_select(0, tensor(batch.masked, device))),
        tensor(batch.words, device),
        model.cls.seq_relationship(pooled),
        tensor(batch.follows, device),
    )


# Rows in which the most frequent token is counted, in all and at a time.
SAMPLE, BLOCK = 100_000, 1000
Z = 1.96  # of a confidence interval of 95 %


@dataclass(frozen=True)
class PretrainingObjective(Objective):
    """Masked words and next sentences of prepared instances."""

    losses: ClassVar[Sequence[str]] = ("mlm_loss", "nsp_loss")

    data: Instances
    others: Instances | None = None  # of the rows held out, where those are not of ``data``
    commonest: int = 0  # the token that is masked most often

    def read(self, rows: Any) -> Columns:
        """Return rows of the instances."""
        return read(self.data, rows)

    def counts(self, found: Columns) -> Sequence[float]:
        """Return the number of masked tokens, and of rows."""
        return max(int(found["masked_lm_counts"].sum()), 1), len(found["lengths"])

    def sums(
        self, model: BertForPreTraining, part: Columns, device: torch.device
    ) -> Sequence[Tensor]:
        """Return both losses, summed over the masked tokens and over the rows."""
        return predict(model, collate(part, padded=device.type != "cpu"), device).losses()

    def evaluate(self, model: BertForPreTraining, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return losses, accuracies and baselines.

        `unigram_accuracy` is that of always guessing the commonest word, `commoner_label_accuracy`
        that of always giving the same answer about the second sentence.
        """
        sums = torch.zeros(8, dtype=torch.float64)
        for rows in in_batches(self.held[ranks.index :: ranks.count], batch_size):
            sums += self._sums(model, rows, ranks.device)
        return _named(ranks.total(sums).tolist())

    def _sums(self, model: BertForPreTraining, rows: Any, device: torch.device) -> torch.Tensor:
        (longest_first,) = parts(read(self.others or self.data, rows), 1)
        batch = collate(longest_first, padded=device.type != "cpu")
        found = predict(model, batch, device)
        right = found.word_logits.argmax(-1) == found.words
        follows = found.follows_logits.argmax(-1) == found.follows
        words_loss, follows_loss = found.losses()
        return torch.tensor(
            [
                len(batch.words),
                words_loss.item(),
                right.sum().item(),
                int((batch.words == self.commonest).sum()),
                len(rows),
                follows_loss.item(),
                follows.sum().item(),
                int(batch.follows.sum()),
            ],
            dtype=torch.float64,
        )


def commonest_word(data: Instances, rows: Any) -> int:
    """Return the token that is masked most often among these rows, or the first of them."""
    counts = np.zeros(data.vocab_size, np.int64)
    for some in in_batches(rows[:SAMPLE], BLOCK):
        words = collate(read(data, some), padded=True).words
        counts += np.bincount(words, minlength=data.vocab_size)
    return int(counts.argmax())


def _named(sums: list[float]) -> dict[str, Any]:
    masked, words_loss, right, guessed, rows, follows_loss, follows, random = sums
    words = max(masked, 1)
    low, high = wilson(follows, rows)
    return {
        "eval_loss": words_loss / words + follows_loss / rows,
        "eval_mlm_loss": words_loss / words,
        "eval_nsp_loss": follows_loss / rows,
        "perplexity": exp(min(words_loss / words, 700)),
        "masked_accuracy": right / words,
        "unigram_accuracy": guessed / words,
        "next_sentence_accuracy": follows / rows,
        "next_sentence_interval": [low, high],
        "commoner_label_accuracy": max(random, rows - random) / rows,
        "masked": int(masked),
        "rows": int(rows),
    }


def wilson(right: float, of: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    share, square = right / of, Z * Z / of
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * sqrt(share * (1 - share) / of + square / (4 * of))
    return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True, kw_only=True)
class PretrainingTask(TrainedTask):
    """BertForPreTraining on the rows of prepared instances; the last weights are the result."""

    keeps_best: ClassVar[bool] = False

    config: BertConfig
    init: Path | None

    @classmethod
    def open(cls, job: PretrainingJob, options: TrainingOptions, ranks: Ranks) -> PretrainingTask:
        """Open and check the instances, and the config to train.

        Raises InputError or ModelError for what cannot be trained.
        """
        data, notes = _open(job.data, ranks, job.extra or None), list[str]()
        _refuse_other_fields(job, data)
        if any(shard["file"].endswith(".parquet") for shard in data.index["shards"]):
            notes.append(
                "random access to instances in Parquet is slow; safetensors is fast (prepare -f)"
            )
        objective, rows = _parted(job, data, options, ranks, notes)
        numbers = 1 if ranks.device.type != "cpu" else configuration.WEIGHT_TO_ADAM
        config = _config(job, data, objective.others or data, numbers)
        return cls(
            options=options,
            objective=objective,
            rows=rows,
            notes=notes,
            config=config,
            init=job.init,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run; files by their sha256."""
        init = self.init
        return {
            "config": self.config.to_dict(),
            "instances_sha256": sha256(self.objective.data.folder / INDEX),
            "init_sha256": init and " ".join(map(sha256, require_weights(bert_folder(init)).all)),
        }

    def model(self, checkpoint: Path | None) -> BertForPreTraining:
        """Build the model: fresh, from `--init`, or from a checkpoint.

        Weights are copied, not mapped, as the address of a tensor can change the last bits.
        """
        model = BertForPreTraining(self.config)
        source = checkpoint or self.init
        if source is None:
            initialise(model, self.config.initializer_range)
        else:
            found, _ = load(source, BertForPreTraining, dtype=torch.float32)
            config = self.config
            add_extra_embeddings(found.bert, config.extra_fields, config.extra_embeddings)
            model.load_state_dict(found.state_dict())
        return model

    def put(self, folder: Path, model: BertForPreTraining) -> None:
        """Write the model with its tokenizer."""
        put_model(folder, model, self.config, self.objective.data.folder)


def _open(folder: Path, ranks: Ranks, extra: Collection[str] | None) -> Instances:
    """Open prepared instances; InputError when there are none, or their files were changed."""
    data = Instances.open(folder, extra)
    if ranks.first:
        data.verify()
    if not len(data):
        raise InputError(f"{folder}: no instances found")
    return data


def _parted(
    job: PretrainingJob, data: Instances, options: TrainingOptions, ranks: Ranks, notes: list[str]
) -> tuple[PretrainingObjective, Any]:
    """Return what is learnt, with the rows that are held out, and the rows to train on."""
    if job.eval_dir is not None:
        other = _open(job.eval_dir, ranks, data.extra_embeddings)
        rows, held = np.arange(len(data)), np.arange(len(other))
        configuration.refuse_other(data, other)
        return PretrainingObjective(data, held, other, commonest_word(data, rows)), rows
    rows, held = held_out(len(data), options.eval_fraction)
    if not len(held):
        return PretrainingObjective(data), rows
    if (data.index["options"].get("dupe_factor") or 1) > 1:
        notes.append(
            "held-out instances share texts with the training instances (dupe_factor); "
            "use --eval-dir to evaluate on other texts"
        )
    return PretrainingObjective(data, held, None, commonest_word(data, rows)), rows


def _refuse_other_fields(job: PretrainingJob, data: Instances) -> None:
    """Raise UsageError for extra ids that were read from another field than the one named."""
    for name, field_of_ids in data.extra_fields.items():
        if job.extra.get(name, field_of_ids) != field_of_ids:
            raise UsageError(
                f"--extra {name}={job.extra[name]}: the ids of {name} in {data.folder} are from "
                f"the field {field_of_ids}",
                f"--extra {name}={field_of_ids}, or prepare the instances again",
            )


def _config(job: PretrainingJob, data: Instances, held: Instances, numbers: int) -> BertConfig:
    if job.init is None:
        config = configuration.read(job.config or "", data)
    else:
        config = read_config(job.init)
        configuration.check(config, data, str(job.init), given=False)
    config = configuration.with_extra(config, data, held, str(job.init or job.config))
    configuration.refuse_too_large(config, str(job.init or job.config), numbers)
    return config
