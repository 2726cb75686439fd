"""Token classification: entities (names, places, drugs, ...) with their spans.

Results equal those of transformers' token-classification pipeline, which combines labels to
entities as follows:

    none      every token with a label of its own
    simple    neighbours with the same label are one entity; B- starts another
    first, average, max
              first each word gets one label: that of its first token, of the mean of its tokens'
              scores, or of its most certain token
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from bertcli.errors import SKIP, InputError, UsageError, counted, option
from bertcli.io.typed_json import TEXTS, JsonObject, is_text
from bertcli.models.activations import softmax
from bertcli.records.record import words
from bertcli.tasks.entities import MASK, REDACTED, redacted_text, without_overlaps
from bertcli.tasks.head import HeadTask
from bertcli.tasks.labels import (
    NO_LABEL,
    NamedLabelTask,
    classes_loss,
    listed_labels,
    refuse_other_labels,
)
from bertcli.tasks.learning import (
    Evaluation,
    Example,
    ExampleFields,
    TokenLearningTask,
    example_records,
)
from bertcli.tasks.metrics import TagPredictions
from bertcli.tokenizing.batch import Encoded, Layout
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertcli.tasks.evaluated_model import EvaluatedModel
    from bertcli.tasks.learning import Window

COLUMNS = ("offset_mapping", "word_ids", "sequence_ids")
Aggregation: TypeAlias = Literal["simple", "none", "first", "average", "max"]
STRIDE_DIVISOR = 4  # windows of split words and redacted texts share a quarter of their tokens


@dataclass(frozen=True)
class Piece:
    """A token, or a word of several tokens, with its label scores [labels] and its span."""

    word: str
    scores: np.ndarray
    start: int
    end: int
    index: int = 0
    continues: bool = False  # True if it belongs to the previous token's word

    @property
    def best(self) -> int:
        """The index of the most likely label."""
        return int(self.scores.argmax())

    @property
    def score(self) -> float:
        """The score of the most likely label."""
        return float(self.scores.max())


def tagged_text(item: Encoded) -> str:
    """Return the text to which spans refer: words are joined by blanks."""
    text = item.record.text
    return text if isinstance(text, str) else " ".join(text)


def token_pieces(item: Encoded, scores: np.ndarray, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the tokens of a text without special tokens; spans are offsets in the text.

    For a text that is split into words, spans are offsets in the words joined by blanks. Tokens of
    a pair's second text are left out, because their spans refer to another text.
    """
    text = tagged_text(item)
    starts = None
    if not isinstance(item.record.text, str):
        starts = [*accumulate((len(word) + 1 for word in item.record.text), initial=0)]
    unknown_id = tokenizer.special_ids().get(tokenizer.roles["unk_token"])
    continuing_prefix = getattr(tokenizer.core.model, "continuing_subword_prefix", None)
    columns = (item.columns[name] for name in ("input_ids", *COLUMNS))
    for position, (index, (start, end), word, sequence) in enumerate(zip(*columns, strict=True)):
        if sequence != 0:
            continue
        if starts is not None and word is not None:
            start = start + starts[word]
            end = end + starts[word]
        if index == unknown_id:
            yield Piece(text[start:end], scores[position], start, end, position)
            continue
        token = str(tokenizer.core.id_to_token(index))
        if continuing_prefix:  # "##ing" is longer than its span
            continues = len(token) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        yield Piece(token, scores[position], start, end, position, continues)


def consecutive_groups(
    pieces: Iterable[Piece], starts_group: Callable[[Piece, Piece], bool]
) -> list[list[Piece]]:
    """Return groups of consecutive pieces; ``starts_group`` decides where.

    Its arguments are the previous piece and the piece, which may start a new group.
    """
    groups: list[list[Piece]] = []
    for piece in pieces:
        if not groups or starts_group(groups[-1][-1], piece):
            groups.append([])
        groups[-1].append(piece)
    return groups


@dataclass(frozen=True)
class Tagger(HeadTask):
    """A tagger that is ready to run. With a stride, long texts are tagged in windows.

    Labels in ``ignored`` are left out. With ``redact``, a result has the text with its entities, or
    those with these labels, replaced by ``redact_with``, in which "{label}" and "{score}" stand for
    those of the entity; long texts are then always tagged in windows.
    """

    architecture: ClassVar[str] = "BertForTokenClassification"
    plain_field: ClassVar[str] = REDACTED

    aggregation: Aggregation = "simple"
    ignored: tuple[str, ...] = ("O",)
    redact: bool | str | Sequence[str] = False  # True: all labels
    redact_with: str = MASK

    def __post_init__(self) -> None:
        if self.head.settings.stride is not None and self.aggregation == "none":
            raise UsageError(
                f"{option('stride')} cannot be combined with {option('aggregation', 'none')}",
                "tokens that windows share would appear twice; use "
                f"{option('aggregation', 'simple')}",
            )
        if self.redact is not False:
            self._check_redaction()

    def _check_redaction(self) -> None:
        """Raise UsageError for labels that cannot be replaced, and for single tokens."""
        if self.aggregation == "none":
            raise UsageError(
                f"{option('redact')} cannot be combined with {option('aggregation', 'none')}",
                f"entities are replaced, not tokens; use {option('aggregation', 'simple')}",
            )
        if not is_text(self.redact_with):
            raise UsageError(f"{option('redact_with', self.redact_with)} is not text")
        known = {self._entity_label(label) for label in self.head.labels}.difference(self.ignored)
        for label in self.redacted_labels:
            if label in self.ignored:
                raise UsageError(f"the label {label!r} cannot be both replaced and left out")
            if label not in known:
                listed = ", ".join(sorted(known))
                raise UsageError(
                    f"{option('redact')}: unknown label {label!r}", f"the model has: {listed}"
                )

    @cached_property
    def redacted_labels(self) -> tuple[str, ...]:
        """The labels of the entities to replace; () means all. Raises UsageError for none."""
        if isinstance(self.redact, bool):
            return ()
        return listed_labels(self.redact, "redact", "PER,LOC")

    @property
    def blank(self) -> dict[str, Any]:
        """An example result, with an empty entity."""
        piece = Piece("", np.zeros(len(self.head.labels)), 0, 0)
        if self.aggregation == "none":
            return {"entities": [self._token(piece)]}
        return self._with_redacted("", [self._entity([piece])])

    @property
    def layout(self) -> Layout:
        """The layout of the tokens of a text."""
        layout = self.head.layout(*COLUMNS)
        stride = self.head.settings.stride
        if stride is None and self.redact is not False:  # no part of a text may stay unredacted
            stride = self.head.max_length // STRIDE_DIVISOR
        return layout if stride is None else replace(layout, overflowing=True, stride=stride)

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the entities of a text, in text order."""
        entities = [
            entity
            for item, logits in zip(items, outputs, strict=True)
            for entity in self._entities(item, softmax(logits))
        ]
        if len(items) > 1:
            entities = without_overlaps(entities)
        return self._with_redacted(tagged_text(items[0]), entities)

    def _with_redacted(self, text: str, entities: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the entities of a text as result fields; to redact, with the text and its copy."""
        if self.redact is False:
            return {"entities": entities}
        labels = self.redacted_labels
        replaced = [one for one in entities if not labels or one["entity_group"] in labels]
        redacted = redacted_text(text, replaced, self.redact_with)
        return {"text": text, REDACTED: redacted, "entities": entities}

    def table_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a result for a table; redacted texts have one row each."""
        if self.redact is False:
            return fields
        return {name: fields[name] for name in ("text", REDACTED)}

    def _entities(self, item: Encoded, scores: np.ndarray) -> list[dict[str, Any]]:
        """Return the entities of one window from its scores [L, labels], in text order."""
        pieces: Iterable[Piece] = token_pieces(item, scores, self.head.tokenizer)
        if self.aggregation == "none":
            tokens = map(self._token, pieces)
            return [token for token in tokens if token["entity"] not in self.ignored]
        if self.aggregation != "simple":
            pieces = map(
                self._word, consecutive_groups(pieces, lambda _, piece: not piece.continues)
            )
        entities = map(self._entity, consecutive_groups(pieces, self._starts_entity))
        return [entity for entity in entities if entity["entity_group"] not in self.ignored]

    def _token(self, piece: Piece) -> dict[str, Any]:
        """Return the output of a token, for --aggregation none."""
        return {
            "entity": self.head.labels[piece.best],
            "score": piece.score,
            "index": piece.index,
            "word": piece.word,
            "start": piece.start,
            "end": piece.end,
        }

    def _word(self, pieces: Sequence[Piece]) -> Piece:
        """Return the tokens of a word as one piece with one label."""
        match self.aggregation:
            case "first":
                scores = pieces[0].scores
            case "average":
                scores = np.mean([piece.scores for piece in pieces], axis=0)
            case _:
                scores = max(pieces, key=lambda piece: piece.score).scores
        text = self._text([piece.word for piece in pieces])
        return replace(pieces[0], word=text, scores=scores, end=pieces[-1].end)

    def _starts_entity(self, previous: Piece, piece: Piece) -> bool:
        """Return True if a piece starts an entity: it has another type, or its label is B-."""
        is_start, entity_type = self._parsed_label(piece)
        return is_start or entity_type != self._parsed_label(previous)[1]

    def _parsed_label(self, piece: Piece) -> tuple[bool, str]:
        """Return True for a label B-, and the entity type of the label."""
        label = self.head.labels[piece.best]
        return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label

    def _entity(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the output of an entity, from its tokens or words."""
        return {
            "entity_group": self._entity_label(self.head.labels[pieces[0].best]),
            "score": float(np.mean([piece.score for piece in pieces])),
            "word": self._text([piece.word for piece in pieces]),
            "start": pieces[0].start,
            "end": pieces[-1].end,
        }

    @staticmethod
    def _entity_label(label: str) -> str:
        """Return a label of tokens as a label of entities: without B- or I-."""
        return label.split("-", 1)[-1]

    def _text(self, words: list[str]) -> str:
        """Return tokens joined to a text, as the tokenizer decodes them."""
        decoder = self.head.tokenizer.core.decoder
        return decoder.decode(words) if decoder else " ".join(words)


@dataclass(frozen=True)
class WordTagger(Tagger):
    """A tagger of sentences given as words: each word gets the label of its first token."""

    @property
    def layout(self) -> Layout:
        """The layout of the tokens of a sentence, in windows."""
        return word_windows(self.head.layout())

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the label of each word."""
        return {"tags": tags_of([*zip(items, outputs, strict=True)], self.head.labels)}


def tags_of(windows: Sequence[tuple[Encoded, np.ndarray]], labels: Sequence[str]) -> list[str]:
    """Return the label of each word of a sentence, from its windows.

    A word without tokens has the label "O".
    """
    items = [item for item, _ in windows]
    tags = ["O"] * len(items[0].record.text)
    for (_, logits), first_tokens in zip(windows, first_tokens_of_windows(items), strict=True):
        for word, token in first_tokens.items():
            tags[word] = labels[int(logits[token].argmax())]
    return tags


def word_windows(layout: Layout) -> Layout:
    """Return the layout of windows, as long as the layout's texts, over sentences of words."""
    columns = (*layout.columns, "word_ids")
    stride = (layout.max_length or 0) // STRIDE_DIVISOR
    return replace(layout, columns=columns, overflowing=True, stride=stride)


def first_tokens_of_windows(items: Sequence[Encoded]) -> Iterator[dict[int, int]]:
    """Yield the position of the first token of each word, by word, for each window.

    Each word of a text occurs once: in the first window that contains it.
    """
    for _, windows in groupby(items, key=lambda item: item.sample):
        seen: set[int] = set()
        for item in windows:
            first_tokens: dict[int, int] = {}
            for token, word in enumerate(item.columns["word_ids"]):
                if word is not None and word not in seen:
                    first_tokens.setdefault(word, token)
            seen |= first_tokens.keys()
            yield first_tokens


# --- the learning task ---


class TaggingTask(NamedLabelTask, TokenLearningTask):
    """Learns a tag for each word of a sentence. The loss is the cross-entropy of first tokens.

    Source: transformers' BertForTokenClassification, where the first token of each word carries its
    tag, as in the paper (5.3).
    """

    name = "tag"
    fields = ExampleFields("words", None, "tags")
    architecture = "BertForTokenClassification"
    impossible_if_frozen = "learn tags of words"

    def recognises(self, text: Any, label: Any) -> bool:
        """Return True for a text given as words."""
        return isinstance(text, list)

    def texts(self, fields: JsonObject, names: ExampleFields) -> tuple[list[str], None]:
        """Return the words of an example."""
        return _words_in(fields, names.text), None

    def target(self, fields: JsonObject, names: ExampleFields) -> list[str]:
        """Return the tags of an example. Raises InputError unless there is one per word."""
        tags = _words_in(fields, names.target)
        text = fields[names.text]
        if len(text) != len(tags):
            word_count = counted(len(text), "word")
            tag_count = counted(len(tags), "tag")
            raise InputError(f"{fields.source}: {word_count}, but {tag_count}", SKIP)
        return tags

    def targets(
        self, examples: Sequence[Example], label_ids: Mapping[str, int]
    ) -> list[np.ndarray]:
        """Return the tag ids of the words of each text."""
        return self.label_ids(examples, label_ids)

    def outputs_of_head(self, label_count: int) -> str:
        """Return the plural noun for the outputs of a new head, for a note."""
        return counted(label_count, "tag")

    def layout(self, layout: Layout, max_length: int | None) -> Layout:
        """Return a layout of windows over long sentences."""
        return word_windows(layout)

    def window_targets(self, windows: Sequence[Encoded], targets: Any) -> np.ndarray:
        """Return the tag ids of window tokens, an array of arrays; NO_LABEL for most tokens."""
        labels = np.empty(len(windows), object)
        for row, (window, first_tokens) in enumerate(
            zip(windows, first_tokens_of_windows(windows), strict=True)
        ):
            tags = targets[window.sample]
            labels[row] = np.full(window.length, NO_LABEL)
            labels[row][[*first_tokens.values()]] = tags[[*first_tokens]]
        return labels

    def joined_targets(self, targets: np.ndarray) -> np.ndarray:
        """Return the tag ids of all tokens of a step, [T]."""
        return np.concatenate([*targets])

    def loss(
        self,
        logits: Tensor,
        targets: Tensor,
        lengths: Sequence[int],
        weights: Tensor | None,
        smoothing: float,
    ) -> Tensor:
        """Return the summed cross-entropy of the tokens that have a tag."""
        return classes_loss(logits, targets, weights, smoothing)

    def metric_targets(self, targets: Any, labels: Sequence[str]) -> list[list[str]]:
        """Return the tags of each text."""
        names = np.array(labels, object)
        return [names[ids].tolist() for ids in targets]

    def predictions(
        self, targets: Sequence[Any], texts: Sequence[Sequence[Window]], labels: Sequence[str]
    ) -> TagPredictions:
        """Return the tags with the largest logits."""
        return TagPredictions(targets, [tags_of(windows, labels) for windows in texts])

    def evaluate(self, model: EvaluatedModel, examples: Sequence[Example]) -> Evaluation:
        """Return the tags that a tagger predicts.

        Raises ModelError if the model has none of the tags.
        """
        results, names = model.predictions(WordTagger, example_records(examples))
        targets = [example.target for example in examples]
        refuse_other_labels({tag for tags in targets for tag in tags}, names)
        predicted = [fields["tags"] for fields in results]
        return Evaluation(self.name, len(examples), TagPredictions(targets, predicted))


def _words_in(fields: JsonObject, name: str) -> list[str]:
    """Return the words of a field: a list, or a text that is split at blanks or is JSON."""
    if isinstance(fields.get(name), str):
        fields[name] = words(fields[name])
    return fields.needed(name, TEXTS)


TAG = TaggingTask()
