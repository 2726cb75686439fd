"""Regression: a score for each text or pair, such as its relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.embedding.sentence_modules import IDENTITY
from bertcli.io.typed_json import JsonObject
from bertcli.models.config import BertConfig
from bertcli.tasks.classify import scores_of_labels
from bertcli.tasks.labels import NUMBER
from bertcli.tasks.learning import Evaluation, Example, ExampleFields, TextLearningTask
from bertcli.tasks.metrics import ScorePredictions
from bertcli.tasks.pairs import SIMILARITY

if TYPE_CHECKING:
    from torch import Tensor

    from bertcli.tasks.evaluated_model import EvaluatedModel


class RegressionTask(TextLearningTask):
    """Learn a number. The loss is the squared error."""

    name = "regress"
    fields = ExampleFields("text", "pair", "score")
    problem_type = "regression"
    fixed_labels = ("score",)

    def recognises(self, text: Any, label: Any) -> bool:
        """Return True for a number with a decimal point beside a text."""
        return isinstance(label, float) and not isinstance(text, list)

    def target(self, fields: JsonObject, names: ExampleFields) -> float:
        """Return the score of an example."""
        return float(fields.needed(names.target, NUMBER))

    def targets(self, examples: Sequence[Example], label_ids: Mapping[str, int]) -> np.ndarray:
        """Return the scores, [n]."""
        return np.array([example.target for example in examples], np.float32)

    def configured(self, config: BertConfig) -> BertConfig:
        """Return a config whose activation is the identity: logits are scores."""
        activation = {"activation_fn": IDENTITY}
        other = {**config.other, "sentence_transformers": activation}
        return replace(super().configured(config), other=other)

    def keeps_head(self, config: BertConfig, labels: set[str]) -> bool:
        """Return True for a head with one output."""
        return self.architecture in config.architectures and config.num_labels == 1

    def outputs_of_head(self, label_count: int) -> str:
        """Return what a new head predicts, for a note."""
        return "scores"

    def loss(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float
    ) -> Tensor:
        """Return the sum of the squared errors."""
        from torch.nn import functional as F

        return F.mse_loss(logits.squeeze(-1), targets, reduction="sum")

    def predictions(self, targets: np.ndarray, logits: Tensor) -> ScorePredictions:
        """Return the logits as scores."""
        return ScorePredictions(targets, logits.numpy()[:, 0])

    def evaluate(self, model: EvaluatedModel, examples: Sequence[Example]) -> Evaluation:
        """Return the scores of a head with one output, else the cosines of an embedding model."""
        if not model.has_one_score:
            return SIMILARITY.evaluate(model, examples)
        scores, _ = scores_of_labels(model, examples)
        targets = np.array([example.target for example in examples], np.float64)
        return Evaluation(self.name, len(examples), ScorePredictions(targets, scores[:, 0]))


REGRESS = RegressionTask()
