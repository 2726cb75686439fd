"""Vectors of pairs of texts, whose cosines are high for related texts or follow scores.

Sources: sentence-transformers' MultipleNegativesRankingLoss (Henderson et al., 2017) and CoSENTLoss
(Su, 2022), with their scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.embedding.sentence_modules import unit_vectors
from bertcli.errors import ModelError, option
from bertcli.io.typed_json import JsonObject
from bertcli.tasks.labels import NUMBER
from bertcli.tasks.learning import Evaluation, Example, ExampleFields, PairLearningTask
from bertcli.tasks.metrics import ScorePredictions

if TYPE_CHECKING:
    from torch import Tensor

    from bertcli.tasks.evaluated_model import EvaluatedModel

SCALE = 20.0  # of cosines, in both losses
TEXTS_PER_BLOCK = 1024  # texts that are compared with all others at once


class ContrastTask(PairLearningTask):
    """Learn vectors that are similar for the texts of a pair, and not for texts of other pairs."""

    fields = ExampleFields("anchor", "positive", "positive", needs_pair=True)

    def recognises(self, text: Any, label: Any) -> bool:
        """Return False: a pair has no label."""
        return False

    def target(self, fields: JsonObject, names: ExampleFields) -> str | None:
        """Return the negative text of an example, if it has one."""
        return fields.text("negative") or None

    def negative(self, target: str | None) -> str | None:
        """Return the negative text."""
        return target

    def targets(self, examples: Sequence[Example], label_ids: Mapping[str, int]) -> None:
        """Return None: all pairs are positive."""
        return

    def loss(
        self, left: Tensor, right: Tensor, negatives: Tensor, targets: Tensor | None
    ) -> Tensor:
        """Return the summed cross-entropy of finding the right text of each left one.

        The candidates are the right texts of all pairs and the negatives.
        """
        import torch
        from torch.nn import functional as F

        cosines = left @ torch.cat([right, negatives]).T
        partners = torch.arange(len(left), device=left.device)
        return F.cross_entropy(SCALE * cosines, partners, reduction="sum")

    def metrics(
        self, left: np.ndarray, right: np.ndarray, targets: np.ndarray | None
    ) -> dict[str, float]:
        """Return the share of texts whose nearest text is their partner."""
        count = len(left)
        nearest = [
            (left[start : start + TEXTS_PER_BLOCK] @ right.T).argmax(1)
            for start in range(0, count, TEXTS_PER_BLOCK)
        ]
        return {"accuracy": float((np.concatenate(nearest) == np.arange(count)).mean())}

    def evaluate(self, model: EvaluatedModel, examples: Sequence[Example]) -> Evaluation:
        """Raise ModelError: the examples have no scores to compare with."""
        raise ModelError(
            "anchors and positives have no score to compare with",
            f"give text, pair and score, or {option('queries')}, {option('corpus')} and "
            f"{option('qrels')}",
        )


class SimilarityTask(PairLearningTask):
    """Learn vectors whose cosines are in the order of the scores of pairs."""

    fields = ExampleFields("text", "pair", "score", needs_pair=True)
    is_default = False

    def recognises(self, text: Any, label: Any) -> bool:
        """Return False: by its fields alone, an example with a score is for `regress`."""
        return False

    def target(self, fields: JsonObject, names: ExampleFields) -> float:
        """Return the score of an example."""
        return float(fields.needed(names.target, NUMBER))

    def targets(self, examples: Sequence[Example], label_ids: Mapping[str, int]) -> np.ndarray:
        """Return the scores, [n]."""
        return np.array([example.target for example in examples], np.float32)

    def loss(
        self, left: Tensor, right: Tensor, negatives: Tensor, targets: Tensor | None
    ) -> Tensor:
        """Return the loss of pairs of pairs whose cosines are in the wrong order, times n."""
        import torch

        assert targets is not None
        cosines = SCALE * (left * right).sum(-1)
        excess = cosines[:, None] - cosines  # [i, j]: how much nearer pair i is than pair j
        wrong = excess[targets[:, None] < targets]
        return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0) * len(left)

    def metrics(
        self, left: np.ndarray, right: np.ndarray, targets: np.ndarray | None
    ) -> dict[str, float]:
        """Return the correlations of cosines and scores."""
        assert targets is not None
        cosines = (left * right).sum(1)
        metrics = ScorePredictions(targets.astype(np.float64), cosines).metrics()
        return {name: metrics[name] for name in ("spearman", "pearson")}

    def evaluate(self, model: EvaluatedModel, examples: Sequence[Example]) -> Evaluation:
        """Return the cosines of pairs. Raises ModelError for a text without a pair."""
        left = []
        right = []
        for record, _ in examples:
            if record.pair is None:
                raise ModelError(
                    f"{record.where}: an embedding model scores pairs, and this is a text",
                    "give pairs, or a model with a head of one score",
                )
            left.append(record._replace(pair=None))
            right.append(record._replace(text=record.pair, pair=None))
        vectors = unit_vectors(model.vectors([*left, *right]))
        cosines = (vectors[: len(left)] * vectors[len(left) :]).sum(1)
        targets = np.array([example.target for example in examples], np.float64)
        return Evaluation(self.name, len(examples), ScorePredictions(targets, cosines))


CONTRAST = ContrastTask()
SIMILARITY = SimilarityTask()
