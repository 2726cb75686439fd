"""A head alone as a task of the loop: vectors are computed once, with the model's own pooling.

The result is a sentence-transformers model that ends in a Dense layer, whose vectors are logits,
and a classifier for bertcli. The head is trained on standardised vectors, and written for those of
the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import read_config
from bertcli.embedding import dense
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.record_vectors import RecordVectors
from bertcli.embedding.sentence_folder import SentenceParts, write_sentence_parts
from bertcli.errors import UsageError
from bertcli.hub import ModelFolder
from bertcli.models.bert import BertModel
from bertcli.training.batches import Columns
from bertcli.training.checkpoints import put_model
from bertcli.training.fine_tuning import PROBLEMS
from bertcli.training.kept_vectors import write_vectors
from bertcli.training.label_losses import LabelLoss
from bertcli.training.label_objective import HeldLabels, LabelObjective
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.objective import tensor
from bertcli.training.options import FineTuningJob, Selection, TrainingOptions
from bertcli.training.result import RunSummary, put_description

HEAD = "head.safetensors"
LEAST_SPREAD = 1e-6  # of a dimension that is scaled
SPREAD = 0.02  # of the first weights


@dataclass(frozen=True)
class VectorRows:
    """Standardised vectors [n, D], and targets."""

    vectors: np.ndarray
    targets: np.ndarray

    def columns(self, rows: Any) -> Columns:
        """Return rows by their numbers."""
        found = self.vectors[rows]
        lengths = np.ones(len(found), np.int64)
        return {"vectors": found, "targets": self.targets[rows], "lengths": lengths}


def vector_logits(model: nn.Linear, part: Columns, device: torch.device) -> Tensor:
    """Return the logits of vectors, [B, k]."""
    logits: Tensor = model(tensor(part["vectors"], device))
    return logits


@dataclass(frozen=True)
class FrozenTask:
    """A linear layer over vectors that do not change."""

    job: FineTuningJob
    options: TrainingOptions
    texts: LabelledTexts
    made: RecordVectors  # of all examples
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, job: FineTuningJob, options: TrainingOptions, texts: LabelledTexts, made: RecordVectors
    ) -> FrozenTask:
        """Return the task of vectors that are computed."""
        options = job.settled(options, len(texts.train), frozen=True)
        return cls(job, options, texts, made)

    @staticmethod
    def open(
        folder: ModelFolder, job: FineTuningJob, texts: LabelledTexts, compute: dict[str, Any]
    ) -> RecordVectors:
        """Open the model; UsageError for options that have no effect on a head alone."""
        if texts.task in ("tag", "answer"):
            what = "tags of words" if texts.task == "tag" else "answers"
            raise UsageError(f"--frozen cannot learn {what}", "leave it out, or give --full")
        if job.layers is not None:
            raise UsageError("--layers requires --full", "--frozen trains no layer of the model")
        read_config(folder.path)  # what is trained is put behind an encoder
        options = EmbedOptions(max_length=job.max_length, **compute)
        return RecordVectors(Embedder.open(folder, options), texts.records)

    @property
    def embedder(self) -> Embedder:
        """The model that makes the vectors."""
        return self.made.embedder

    @property
    def raw(self) -> np.ndarray:
        """The vectors as they are, [n, D]."""
        return self.made.vectors

    @cached_property
    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each dimension of the vectors to train on, [D] each."""
        train = self.raw[self.texts.train].astype(np.float64)
        return train.mean(0), np.maximum(train.std(0), LEAST_SPREAD)

    @cached_property
    def objective(self) -> LabelObjective:
        """Logits and losses of the head."""
        mean, deviation = self.scale
        rows = VectorRows(((self.raw - mean) / deviation).astype(np.float32), self.texts.targets)
        weights = self.texts.weights(self.job.class_weights)
        loss = LabelLoss(self.texts.task, weights, self.job.label_smoothing)
        return LabelObjective(rows, vector_logits, loss)

    @property
    def rows(self) -> Any:
        """The examples to train on."""
        return self.texts.train

    @cached_property
    def held(self) -> HeldLabels | None:
        """The examples to evaluate on."""
        held, width = self.texts.held, len(self.texts.names)
        return HeldLabels(self.objective, held, width) if len(held) else None

    @property
    def selection(self) -> Selection | None:
        """How the best weights are chosen."""
        return self.texts.selection(self.job.patience)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run."""
        chosen = self.embedder.chosen()
        vectors = {name: chosen[name] for name in ("pooling", "normalize", "max_length", "prompt")}
        said = self.texts.identity(self.job, self.embedder.folder.path)
        return {**said, "method": "frozen", "vectors": vectors}

    def model(self, checkpoint: Path | None) -> nn.Linear:
        """Build the head: fresh, or as it is in a checkpoint."""
        head = nn.Linear(self.raw.shape[1], len(self.texts.names))
        nn.init.normal_(head.weight, std=SPREAD)
        nn.init.zeros_(head.bias)
        if checkpoint is not None:
            head.load_state_dict(load_file(checkpoint / HEAD))
        return head

    def put(self, folder: Path, model: nn.Linear) -> None:
        """Write the head alone."""
        save_file({name: one.detach() for name, one in model.state_dict().items()}, folder / HEAD)

    def keep(self, folder: Path) -> None:
        """Keep the vectors."""
        write_vectors(folder, self.made)

    def publish(self, folder: Path, model: nn.Linear, summary: RunSummary) -> None:
        """Write the whole sentence model: the BERT, its pooling, and the head."""
        mean, deviation = self.scale
        weight = model.weight.detach().cpu().double().numpy() / deviation
        bias = model.bias.detach().cpu().double().numpy() - weight @ mean
        layer = dense.Dense(weight.astype(np.float32), bias.astype(np.float32))
        self._put_bert(folder)
        write_sentence_parts(folder, self._parts, self.embedder.folder.path, layer)
        put_description(folder, self.texts, self.job, self.options, self.identity, summary)

    @property
    def _parts(self) -> SentenceParts:
        embedder = self.embedder
        return SentenceParts(
            embedder.options.modes,
            bool(embedder.options.normalize),
            embedder.max_length,
            embedder.state_width,
            embedder.sentence.lower_case,
            embedder.sentence.include_prompt,
            embedder.sentence.of_tokens,
            embedder.sentence.of_texts,
        )

    def _put_bert(self, folder: Path) -> None:
        base = self.embedder.runtime.spec.folder
        bert, _ = load(base, BertModel)
        config = read_config(base).with_labels(self.texts.names)
        config = replace(config, problem_type=PROBLEMS[self.texts.task])
        put_model(folder, bert, config, base)
