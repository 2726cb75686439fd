"""A head alone as a task of the loop: vectors are computed once, with the model's own pooling.

The result is a sentence-transformers model that ends in a Dense layer, whose vectors are logits,
and a classifier for bertcli. The head is trained on standardised vectors, and written for those of
the model. Vectors are kept in the folder of the run, so that one that is resumed need not compute
them:

OUT/.vectors    a line of JSON, which says what they are of; then float32, [n, D]
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertcli.checkpoints.load import load, load_tensors, save_tensors
from bertcli.checkpoints.scan import read_config
from bertcli.embedding.embedder import Embedder, RecordVectors
from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.sentence_folder import SentenceParts, write_sentence_parts
from bertcli.embedding.sentence_modules import Dense
from bertcli.errors import UsageError
from bertcli.files.atomic import whole_file
from bertcli.hub import ModelFolder
from bertcli.models.bert import BertModel
from bertcli.training.batches import Columns
from bertcli.training.checkpoints import MAKING, put_model
from bertcli.training.fine_tuning import PROBLEMS, FineTuningTask
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.loop import VECTORS, RunSummary, tensor
from bertcli.training.objectives import LabelLoss, LabelObjective
from bertcli.training.options import FineTuningJob, TrainingOptions
from bertcli.vectors.fingerprint import made_by

HEAD = "head.safetensors"
LEAST_SPREAD = 1e-6  # of a dimension that is scaled
SPREAD = 0.02  # of the first weights


@dataclass(frozen=True)
class VectorRows:
    """Standardised vectors [n, D], and targets."""

    vectors: np.ndarray
    targets: np.ndarray

    def rows(self, numbers: Any) -> Columns:
        """Return rows by their numbers."""
        vectors = self.vectors[numbers]
        lengths = np.ones(len(vectors), np.int64)
        return {"vectors": vectors, "targets": self.targets[numbers], "lengths": lengths}


def vector_logits(model: nn.Linear, part: Columns, device: torch.device) -> Tensor:
    """Return the logits of vectors, [B, k]."""
    logits: Tensor = model(tensor(part["vectors"], device))
    return logits


@dataclass(frozen=True, kw_only=True)
class FrozenTask(FineTuningTask):
    """A linear layer over vectors that do not change."""

    source: RecordVectors  # of all examples
    scale: tuple[np.ndarray, np.ndarray]  # of each dimension to train on: mean, deviation

    @classmethod
    def of(
        cls,
        job: FineTuningJob,
        options: TrainingOptions,
        texts: LabelledTexts,
        source: RecordVectors,
    ) -> FrozenTask:
        """Return the task of vectors that are computed."""
        train = source.vectors[texts.train].astype(np.float64)
        mean, deviation = train.mean(0), np.maximum(train.std(0), LEAST_SPREAD)
        objective = LabelObjective(
            data=VectorRows(
                ((source.vectors - mean) / deviation).astype(np.float32), texts.targets
            ),
            held=texts.held,
            logits=vector_logits,
            loss=LabelLoss(texts.task, texts.weights(job.class_weights), job.label_smoothing),
            width=len(texts.names),
        )
        return cls(
            options=job.settled(options, len(texts.train), frozen=True),
            objective=objective,
            rows=texts.train,
            job=job,
            texts=texts,
            base=source.embedder.folder.path,
            source=source,
            scale=(mean, deviation),
        )

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
        embedder = Embedder.open(folder, EmbedOptions(max_length=job.max_length, **compute))
        whole = replace(embedder.options, dim=None)  # the head takes all that the modules give
        return RecordVectors(replace(embedder, options=whole), texts.records)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run."""
        chosen = self.source.embedder.chosen()
        vectors = {name: chosen[name] for name in ("pooling", "normalize", "max_length", "prompt")}
        return {**super().identity, "method": "frozen", "vectors": vectors}

    def model(self, checkpoint: Path | None) -> nn.Linear:
        """Build the head: fresh, or as it is in a checkpoint."""
        head = nn.Linear(self.source.vectors.shape[1], len(self.texts.names))
        nn.init.normal_(head.weight, std=SPREAD)
        nn.init.zeros_(head.bias)
        if checkpoint is not None:
            head.load_state_dict(load_tensors(checkpoint / HEAD))
        return head

    def put(self, folder: Path, model: nn.Linear) -> None:
        """Write the head alone."""
        save_tensors(folder / HEAD, model.state_dict())

    def keep(self, folder: Path) -> None:
        """Keep the vectors."""
        vectors: Any = np.ascontiguousarray(self.source.vectors, np.float32)
        with whole_file(folder / VECTORS, beside=folder / f"{MAKING}vectors") as file:
            file.write(_header(self.source, vectors))
            file.write(vectors.tobytes())

    def publish(self, folder: Path, model: nn.Linear, summary: RunSummary) -> None:
        """Write the whole sentence model: the BERT, its pooling, and the head."""
        mean, deviation = self.scale
        weight = model.weight.detach().cpu().double().numpy() / deviation
        bias = model.bias.detach().cpu().double().numpy() - weight @ mean
        layer = Dense(weight.astype(np.float32), bias.astype(np.float32))
        embedder = self.source.embedder
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
        self.describe(folder, summary)


def _header(source: RecordVectors, vectors: np.ndarray) -> bytes:
    """Return the line that says what decides vectors, and what they are."""
    digest = hashlib.sha256(json.dumps(made_by(source.embedder), sort_keys=True).encode())
    for record in source.records:
        digest.update(repr((record.text, record.pair)).encode())
    header = {
        "made_by": digest.hexdigest(),
        "shape": vectors.shape,
        "sha256": hashlib.sha256(vectors.tobytes()).hexdigest(),
    }
    return json.dumps(header).encode() + b"\n"


def read_vectors(folder: Path, source: RecordVectors) -> bool:
    """Take the vectors from the folder of a run, if it has them all, made by the same model."""
    try:
        header, _, data = (folder / VECTORS).read_bytes().partition(b"\n")
    except OSError:
        return False
    width = source.embedder.nothing.shape[1]
    if len(data) != 4 * len(source.records) * width:
        return False
    vectors = np.frombuffer(data, np.float32).reshape(-1, width)
    if header + b"\n" != _header(source, vectors):
        return False
    source.vectors = vectors
    return True
