"""A model that is evaluated on examples: by the predictions of its head, or by its vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.embedding.sentence_modules import Dense, read_modules
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts
from bertcli.records.record import Record
from bertcli.retrieval.search import compares_by_dot
from bertcli.tasks.head import CLASSIFIER, Head, HeadTask, Settings, is_pooled_head
from bertcli.tokenizing.run import TokenCounts


@dataclass
class EvaluatedModel:
    """A model that is evaluated. It is loaded by the first prediction of its head or of vectors."""

    folder: ModelFolder
    settings: Settings  # of a head
    options: EmbedOptions  # of a model for vectors
    tally: TokenCounts = field(default_factory=TokenCounts)  # of all texts so far
    max_length: int | None = None  # truncation length of those texts, in tokens

    @cached_property
    def config(self) -> BertConfig | None:
        """The config of the model; None for a table of vectors."""
        return None if self.folder.is_static else self.folder.encoder.config

    @property
    def extra_fields(self) -> Collection[str]:
        """The fields with ids of extra embeddings that the model needs."""
        return self.config.fields_of_extra.values() if self.config else ()

    @property
    def has_one_score(self) -> bool:
        """True if the model has a head with one score."""
        config = self.config
        if config is None:
            return False
        if is_pooled_head(self.folder):
            (last_module,) = read_modules(self.folder, self.folder.modules[-1:])
            return isinstance(last_module, Dense) and len(last_module.weight) == 1
        return config.num_labels == 1 and CLASSIFIER in config.architectures

    @property
    def compares_by_dot(self) -> bool:
        """True if the model compares vectors by dot product."""
        return compares_by_dot(self._embedder)

    @cached_property
    def _embedder(self) -> RecordEmbedder:
        return RecordEmbedder.open(self.folder, self.options)

    def predictions(
        self, task_class: type[HeadTask], records: Sequence[Record], **options: Any
    ) -> tuple[list[Mapping[str, Any]], list[str]]:
        """Return the fields that a task predicts for each record, and the labels of the head."""
        head = Head.open(self.folder, task_class.architecture, self.settings)
        task = task_class(head, **options)
        self.max_length = task.layout.max_length
        stream = task.stream(GivenTexts(records, Input(sentences=True)))
        results = [result.fields for window in stream for result in window]
        self.tally.merge(stream.tally)
        return results, head.labels

    def vectors(self, records: Sequence[Record], prompts: Sequence[str] = ()) -> np.ndarray:
        """Return the vectors of texts, [n, D].

        ``prompts`` are names of prompts; the first that the model has is used, unless the options
        have a prompt.
        """
        embedder = self._embedder
        if self.options.prompt is None and self.options.prompt_name is None:
            embedder = embedder.with_prompt(prompts)
        run = RecordVectors(embedder, records)
        self.tally.merge(run.execute())
        self.max_length = embedder.max_length
        return run.vectors
