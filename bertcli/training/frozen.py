"""A head alone as a task of the loop: vectors are computed once, with the model's own pooling.

The result is a sentence-transformers model that ends in a Dense layer, whose vectors are logits,
and a classifier for bertcli. The head is trained on standardised vectors, and written for those of
the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from bertcli.embedding.sentence_modules import Dense, SentenceParts, write_sentence_parts
from bertcli.errors import UsageError
from bertcli.hub import ModelFolder
from bertcli.models.bert import BertModel
from bertcli.training.batches import Columns, TokenRows
from bertcli.training.checkpoints import put_model
from bertcli.training.fine_tuning import PROBLEMS, FineTuningTask
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.loop import tensor
from bertcli.training.objectives import LabelLoss, LabelObjective
from bertcli.training.options import FineTuningJob, TrainingOptions

HEAD = "head.safetensors"
LEAST_SPREAD = 1e-6  # of a dimension that is scaled
SPREAD = 0.02  # of the first weights


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
    def open(
        cls,
        job: FineTuningJob,
        options: TrainingOptions,
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
        vectors = ((source.vectors - mean) / deviation).astype(np.float32)
        ends = np.arange(len(vectors) + 1)  # as if each were a token
        objective = LabelObjective(
            data=TokenRows(ends, {}, {"vectors": vectors, "targets": texts.targets}),
            held=texts.held,
            logits=vector_logits,
            loss=LabelLoss(texts.task, texts.weights(job.class_weights), job.label_smoothing),
        )
        return cls(
            options=job.settled(options, len(texts.train), frozen=True),
            objective=objective,
            rows=texts.train,
            job=job,
            texts=texts,
            base=folder.path,
            max_length=embedder.max_length,
            tally=source.tally,
            source=source,
            scale=(mean, deviation),
        )

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

    def publish(self, folder: Path, model: nn.Linear, best: Mapping[str, Any]) -> None:
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
        self.describe(folder, best)
