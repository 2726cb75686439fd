"""A head over pooled vectors: a sentence model whose last layer has a score for each label.

It stands where a `Head` of BertForSequenceClassification does. Its folder is that of a
sentence-transformers model that ends in a Dense layer, with the labels in config.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.hub import ModelFolder
from bertcli.inference.options import Compute
from bertcli.inference.progress import Ran
from bertcli.inference.tell import Tell
from bertcli.records.records import Record
from bertcli.tasks.head import Head, OpenModel, Settings, is_pooled_head
from bertcli.tokenizing.columns import Encoded, Layout

CLASSIFIER = "BertForSequenceClassification"


@dataclass(frozen=True)
class PooledHead(OpenModel):
    """A sentence model whose vectors are logits."""

    embedder: Embedder

    @classmethod
    def open(cls, found: ModelFolder, settings: Settings, tell: Tell) -> PooledHead:
        """Load the model; ModelError when it is incomplete."""
        names = (*(one.name for one in fields(Compute)), "max_length", "parse_special", "window")
        options = EmbedOptions(**{name: getattr(settings, name) for name in names})
        embedder = Embedder.open(found, options, tell)
        return cls(embedder.runtime, settings, tell, embedder)

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the logits."""
        named = self.runtime.config.id2label
        return [named.get(i, f"LABEL_{i}") for i in range(self.embedder.width)]

    @property
    def max_length(self) -> int:
        """The number of tokens, special ones included, that a text is truncated to."""
        return self.embedder.max_length

    def layout(self) -> Layout:
        """Return how texts become tokens."""
        return self.embedder.layout

    def prepare(self, record: Record) -> Record:
        """Return a record as it is tokenized."""
        (prepared,) = self.embedder.prepare([record])
        return prepared

    def text_logits(self, batch: Sequence[Encoded]) -> list[np.ndarray]:
        """Return the logits of each text. ModelError for a result that is not finite."""
        found: list[np.ndarray] = []
        for part in self.embedder.embedded(list(batch)):
            if not isinstance(part, Ran):
                found += [item.vector for item in part]
            elif part.warning:
                self.tell.warn(part.warning)
        return found


def open_classifier(
    found: ModelFolder, settings: Settings, tell: Tell, command: str
) -> Head | PooledHead:
    """Load a model that classifies texts, by their first token or by their pooled vector."""
    if is_pooled_head(found.path):
        return PooledHead.open(found, settings, tell)
    return Head.open(found, CLASSIFIER, settings, tell, command)
