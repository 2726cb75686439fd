"""The interface of a learning task, which a model can be trained and evaluated on.

A task defines the fields of its examples, the ids of labels, the loss, the predictions and the
metrics. Each one is an object in the module of its name
(`classify`, `multilabel`, `regress`, `tag`, `answer`, `pairs`), and `registry` lists them.

- `TextLearningTask`: a head over whole texts, with logits [n, k]
- `TokenLearningTask`: a head over the tokens of windows, with logits [T, k]
- `PairLearningTask`: vectors of pairs of texts

Nothing here imports torch or NumPy; losses import torch when they are computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from bertcli.errors import counted
from bertcli.io.typed_json import TEXT, JsonObject
from bertcli.records.record import Record

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from bertcli.models.config import BertConfig
    from bertcli.tasks.evaluated_model import EvaluatedModel
    from bertcli.tasks.metrics import Predictions
    from bertcli.tokenizing.batch import Encoded, Layout

    Window: TypeAlias = tuple[Encoded, np.ndarray]  # a window of a text, its logits [L, k]

# --- examples ---


class ExampleFields(NamedTuple):
    """Names of the fields of an example."""

    text: str
    pair: str | None
    target: str  # of the target; distinguishes tasks whose texts have the same name
    needs_pair: bool = False


@dataclass(frozen=True)
class FieldNames:
    """Names of fields that a user chose; None: the name that the task has."""

    text: str | None = None  # of the first text: a text, words, a question or an anchor
    pair: str | None = None  # of the second: a pair, a context or a positive
    label: str | None = None  # of the target: a label, labels, a score, tags or an answer

    def of(self, fields: ExampleFields) -> ExampleFields:
        """Return the fields of a task with the chosen names."""
        pair = None
        if fields.pair is not None:
            pair = self.pair or fields.pair
        if fields.target == fields.pair:  # the second text is the target
            target = pair or fields.target
        else:
            target = self.label or fields.target
        return fields._replace(text=self.text or fields.text, pair=pair, target=target)


DEFAULT_NAMES = FieldNames()


class Example(NamedTuple):
    """A record, and what a model should predict for it."""

    record: Record
    target: Any  # depends on the task: labels or tags, a number, an AnswerSpan, a negative text


def example_records(examples: Sequence[Example]) -> list[Record]:
    """Return the records of examples."""
    return [example.record for example in examples]


@dataclass(frozen=True)
class Evaluation:
    """Predictions of a model for n examples, with further numbers for the report."""

    task: str
    n: int
    predictions: Predictions
    details: Mapping[str, Any] = field(default_factory=dict)


# --- tasks ---


class LearningTask(ABC):
    """A task that a model can learn from examples."""

    name: ClassVar[str]  # of `--task`; tasks with other fields may have the same name
    fields: ClassVar[ExampleFields]
    is_default: ClassVar[bool] = True  # False: chosen only by its name, never by the fields alone
    takes_extra_ids: ClassVar[bool] = True  # False: no ids of extra embeddings
    impossible_if_frozen: ClassVar[str] = ""  # what a frozen model cannot do, for a message
    has_named_labels: ClassVar[bool] = False  # the labels are words in the examples
    fixed_labels: ClassVar[Sequence[str]] = ()  # labels of a head whose examples name none

    # examples

    @abstractmethod
    def recognises(self, text: Any, label: Any) -> bool:
        """Return True if an example with this text and label can be an example of the task."""

    def texts(self, fields: JsonObject, names: ExampleFields) -> tuple[Any, str | None]:
        """Return the text and the pair of an example.

        Raises InputError for a missing text, and for a missing pair if the task needs one.
        """
        text = fields.needed(names.text, TEXT)
        pair = None
        if names.pair:
            pair = fields.text(names.pair) or None
            if names.needs_pair and not pair:
                raise fields.bad(names.pair, "a text")
        return text, pair

    @abstractmethod
    def target(self, fields: JsonObject, names: ExampleFields) -> Any:
        """Return the target of an example. Raises InputError for another type of value."""

    def split_key(self, example: Example) -> str:
        """Return the text that must not be in both the training and the held-out examples."""
        return str(example.record.text)

    # labels

    def labels(self, targets: Sequence[Any], source: str) -> list[str]:
        """Return the labels in the order of their ids.

        ``source`` is the name of the input. Raises InputError for too few labels.
        """
        return list(self.fixed_labels)

    def targets(self, examples: Sequence[Example], label_ids: Mapping[str, int]) -> Any:
        """Return the targets of examples as the loss takes them.

        Raises InputError for labels that are not in ``label_ids``.
        """
        return [example.target for example in examples]

    def can_learn(self, targets: Any, rows: Any) -> bool:
        """Return True if targets of these rows differ enough to learn from them."""
        return True

    # training

    def layout(self, layout: Layout, max_length: int | None) -> Layout:
        """Return the layout of the tokens: of whole texts, or of windows."""
        return layout

    def outputs_of_head(self, label_count: int) -> str:
        """Return what a new head predicts, such as "3 labels", for a note."""
        return counted(label_count, "label")

    # evaluation

    @abstractmethod
    def evaluate(self, model: EvaluatedModel, examples: Sequence[Example]) -> Evaluation:
        """Return a model's predictions, with the targets of the examples.

        Raises ModelError for a model that cannot predict them.
        """


class HeadLearningTask(LearningTask):
    """A task of a head on a BERT."""

    architecture: ClassVar[str]  # class of the head
    problem_type: ClassVar[str | None] = None  # of config.json

    def configured(self, config: BertConfig) -> BertConfig:
        """Return the config to save with the trained head."""
        return replace(config, problem_type=self.problem_type)

    @abstractmethod
    def keeps_head(self, config: BertConfig, labels: set[str]) -> bool:
        """Return True if training starts from the head of the model: it has the same labels."""

    def class_weights(self, targets: Sequence[Any], label_count: int) -> np.ndarray:
        """Return weights [k] with which rare labels count as much as common ones."""
        raise NotImplementedError

    def loss_divisor(self, targets: np.ndarray, weights: np.ndarray | None) -> float:
        """Return the divisor of the summed loss of a step."""
        return targets.size or 1


class TextLearningTask(HeadLearningTask):
    """A task of a head over whole texts."""

    architecture = "BertForSequenceClassification"

    @abstractmethod
    def loss(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float
    ) -> Tensor:
        """Return the sum of the losses of texts from their logits [n, k]."""

    @abstractmethod
    def predictions(self, targets: np.ndarray, logits: Tensor) -> Predictions:
        """Return the predictions from logits [n, k], with the targets."""


class TokenLearningTask(HeadLearningTask):
    """A task of a head over the tokens of texts, which are read in windows."""

    @abstractmethod
    def window_targets(self, windows: Sequence[Encoded], targets: Any) -> np.ndarray:
        """Return the targets of each window from those of the texts, an array of n rows."""

    def joined_targets(self, targets: np.ndarray) -> np.ndarray:
        """Return the targets of the windows of a step as one array."""
        return targets

    @abstractmethod
    def loss(
        self,
        logits: Tensor,
        targets: Tensor,
        lengths: Sequence[int],
        weights: Tensor | None,
        smoothing: float,
    ) -> Tensor:
        """Return the sum of the losses of windows with these lengths, from logits [T, k]."""

    @abstractmethod
    def metric_targets(self, targets: Any, labels: Sequence[str]) -> list[Any]:
        """Return the targets of texts as the metrics take them, such as names of tags."""

    @abstractmethod
    def predictions(
        self, targets: Sequence[Any], texts: Sequence[Sequence[Window]], labels: Sequence[str]
    ) -> Predictions:
        """Return the predictions from the logits of all windows of texts, with the targets."""


class PairLearningTask(LearningTask):
    """A task of an embedding model, which is trained on pairs of texts."""

    name = "embed"
    takes_extra_ids = False
    impossible_if_frozen = "train vectors"

    def negative(self, target: Any) -> str | None:
        """Return the negative text of an example, or None."""
        return None

    @abstractmethod
    def loss(
        self, left: Tensor, right: Tensor, negatives: Tensor, targets: Tensor | None
    ) -> Tensor:
        """Return the sum of the losses of pairs of unit vectors, [n, D] each; negatives [m, D]."""

    @abstractmethod
    def metrics(
        self, left: np.ndarray, right: np.ndarray, targets: np.ndarray | None
    ) -> dict[str, float]:
        """Return the metrics of unit vectors of pairs, [n, D] each."""
