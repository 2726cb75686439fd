"""Classification by any labels, without training, by a model of natural language inference.

A label fits a text if the text entails a sentence with the label: "This example is sports."
Scores are those of transformers' zero-shot-classification pipeline. Source: Yin et al., 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bertcli.engines.runtime import refuse_extra_embeddings
from bertcli.errors import InputError, ModelError, UsageError, option
from bertcli.io.typed_json import is_text
from bertcli.models.activations import softmax
from bertcli.records.batch import record_windows
from bertcli.records.record import Record
from bertcli.tasks.classify import BLANK, LabelTask
from bertcli.tasks.labels import listed_labels
from bertcli.tasks.needed_models import NEEDED_MODELS
from bertcli.tasks.several_texts import SeveralTextsTask
from bertcli.tokenizing.batch import Encoded, Layout
from bertcli.tokenizing.run import TokenizeRun

ENTAILMENT = "entail"  # the beginning of the label of an entailed sentence, in any case
HYPOTHESIS = "This example is {}."


@dataclass(frozen=True)
class ZeroShotClassifier(SeveralTextsTask, LabelTask):
    """A classifier by ``labels``, see `LabelTask`.

    ``hypothesis`` is the sentence of a label, which replaces "{}" (default: `HYPOTHESIS`). With
    ``multi_label``, each label is scored on its own: how likely entailment is against
    contradiction. Otherwise the scores of all labels add up to 1.
    """

    labels: str | Sequence[str] = ()  # a text has commas between them
    hypothesis: str | None = None
    multi_label: bool = False

    def __call__(self, texts: Any, labels: Any = None, **options: Any) -> Any:
        """Return the row of each text, or of a single text.

        ``labels`` and ``options`` replace those of this object, see `HeadTask`.
        """
        if labels is not None:
            options["labels"] = labels
        return super().__call__(texts, **options)

    def __post_init__(self) -> None:
        folder = self.head.runtime.spec.folder
        refuse_extra_embeddings(folder, self.head.runtime.config)
        if self.entailment is None:
            needed = NEEDED_MODELS[type(self).__name__]
            raise ModelError(
                f"{folder}: no label means entailment: {', '.join(self.head.labels)}",
                f"give {needed.model}: {needed.origin}",
            )
        template = self.hypothesis
        if template is not None and ("{}" not in template or not is_text(template)):
            raise UsageError(
                f"{option('hypothesis', template)} has no {{}} for the label",
                f"for example {option('hypothesis', HYPOTHESIS)}",
            )

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """The labels to choose from. Raises UsageError for none."""
        return listed_labels(self.labels, "labels", "sports,politics")

    @cached_property
    def hypotheses(self) -> list[str]:
        """The sentence of each label. Raises UsageError for one that leaves no room for a text."""
        template = HYPOTHESIS if self.hypothesis is None else self.hypothesis
        hypotheses = [template.replace("{}", label) for label in self.label_names]
        tokenizer = self.head.tokenizer
        room = self.head.max_length - tokenizer.num_special_tokens_to_add(pair=True)
        layout = Layout(("input_ids",), special_tokens=False)
        batch = tokenizer.encode_records([Record(text) for text in hypotheses], layout)
        for label, length in zip(self.label_names, batch.lengths, strict=True):
            if length >= room:
                raise UsageError(
                    f"the hypothesis of the label {label!r} has {length} tokens, and a pair {room}",
                    f"shorten {option('hypothesis')} or the label",
                )
        return hypotheses

    @cached_property
    def entailment(self) -> int | None:
        """The index of the model's logit for entailment; None if it has no such label."""
        names = [name.lower() for name in self.head.labels]
        found = [index for index, name in enumerate(names) if name.startswith(ENTAILMENT)]
        return found[0] if found and len(names) > 1 else None

    @property
    def is_multi_label(self) -> bool:
        """True if several labels may be true."""
        return self.multi_label

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        if self.several:
            return {"labels": [BLANK]}
        return self.label_fields(np.zeros(len(self.label_names)), self.label_names)

    @property
    def layout(self) -> Layout:
        """The layout of the tokens of a text and a hypothesis, which is never truncated."""
        return replace(self.head.layout(), truncation="only_first")

    def windows(self, run: TokenizeRun) -> Iterator[Sequence[Record]]:
        """Yield texts with as many pairs and characters as windows of other tasks have."""
        count = len(self.label_names)
        size = max(1, self.head.settings.window // count)
        characters = max(1, run.characters // count)
        return record_windows(run.blocks(), size, characters=characters, growing_from=run.start)

    def texts_of(self, record: Record) -> list[Record]:
        """Return a text with the hypothesis of each label. Raises InputError for a pair."""
        if record.pair is not None or not isinstance(record.text, str):
            raise InputError(
                f"{record.where}: not a single text, which {option('labels')} classifies",
                "join the two texts of a pair, and the words of a text",
            )
        return [record._replace(pair=hypothesis) for hypothesis in self.hypotheses]

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the label or the labels of a text from the logits of its hypotheses."""
        logits = np.stack(outputs)  # [labels, labels of the model]
        assert self.entailment is not None
        if self.multi_label or len(logits) == 1:
            contradiction = -1 if self.entailment == 0 else 0  # as the pipeline, whatever its name
            scores = softmax(logits[:, [contradiction, self.entailment]])[:, 1]
        else:
            scores = softmax(logits[:, self.entailment])
        return self.label_fields(scores, self.label_names)
