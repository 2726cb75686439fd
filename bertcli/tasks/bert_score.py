"""BERTScore: how similar a text is to a reference, by the best match of each of their tokens.

Source: BERTScore (Zhang et al., 2020), section 3. Scores equal those of the package bert-score
without rescaling, with slow tokenizers (its default).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import log
from typing import Any, ClassVar

import numpy as np

from bertcli.embedding.options import parse_layers
from bertcli.embedding.pooling import split_by_sizes
from bertcli.embedding.sentence_modules import unit_vectors
from bertcli.engines.engine import ModelSpec, StateSelection
from bertcli.engines.runtime import open_runtime, open_tokenizer, token_limit
from bertcli.errors import SKIP, InputError, UsageError, option
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.batch import record_windows
from bertcli.records.record import Record
from bertcli.tasks.head import SPECIAL_MASK, Head, Settings
from bertcli.tasks.results import Result
from bertcli.tasks.several_texts import SeveralTextsTask
from bertcli.tokenizing.batch import Encoded, Layout
from bertcli.tokenizing.run import TokenizeRun

TOKENS_PER_BLOCK = 1 << 16  # tokens whose vectors are in memory together
WEIGHTS = "weights"  # a column beside the tokens
# Tokenizers whose tokens depend on a blank before the text, which bert-score adds.
PREFIXED_CLASSES = ("RobertaTokenizer", "GPT2Tokenizer")


@dataclass(frozen=True)
class BertScoreSettings(Settings):
    """Settings of the model: also the layer whose vectors are compared."""

    layers: int = -1  # 0 is the embedding output, -1 the last layer

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = parse_layers(self.layers)
        if len(layers) != 1:
            raise UsageError(
                f"{option('layers', self.layers)}: the vectors of one layer are compared",
                f"for example {option('layers', 9)}",
            )
        object.__setattr__(self, "layers", layers[0])


@dataclass(frozen=True)
class BertScorer(SeveralTextsTask):
    """An encoder that is ready to compare the texts of pairs: a candidate and its reference.

    With ``idf``, tokens that occur in few references of the input weigh more.
    """

    architecture: ClassVar[str] = "BertModel"
    settings_class: ClassVar[type[Settings]] = BertScoreSettings
    is_per_text: ClassVar[bool] = True

    idf: bool = False

    @classmethod
    def open_head(cls, folder: ModelFolder, settings: BertScoreSettings) -> Head:
        """Load an encoder up to the layer of the settings.

        Raises ModelError for a folder without an encoder, UsageError for a setting that this model
        or this machine does not support.
        """
        encoder = folder.encoder
        tokenizer = open_tokenizer(encoder, parse_special=settings.parse_special)
        selection = StateSelection(layers=(settings.layers,))
        spec = ModelSpec(encoder, settings, cls.architecture, selection)
        runtime = open_runtime(spec, lambda: tokenizer)
        limit = token_limit(runtime.config, tokenizer, settings.max_length)
        return Head(runtime, settings, limit, list, folder)

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        return {"precision": 0.0, "recall": 0.0, "f1": 0.0}

    @property
    def layout(self) -> Layout:
        """The layout of the tokens of a text."""
        return self.head.layout(SPECIAL_MASK)

    def finish(self, model: Any, states: Any, lengths: Sequence[int]) -> Any:
        """Return the vectors of the tokens of each text, [L, D] per text."""
        return split_by_sizes(states, lengths)

    def encoded(self, run: TokenizeRun) -> Iterator[Sequence[Encoded]]:
        """Yield the tokens of candidates and their references, with a column of weights.

        The weights of ``idf`` need all references, so all records are read first.
        """
        weights = self._idf_weights(run.read_all()) if self.idf else None
        for batch in super().encoded(run):
            yield [self._weighted(row, weights) for row in batch]

    def windows(self, run: TokenizeRun) -> Iterator[Sequence[Record]]:
        """Yield the pairs whose texts are tokenized together; the first windows are small."""
        return record_windows(
            run.blocks(),
            self.head.settings.window,
            characters=self.window_characters,
            growing_from=run.start,
        )

    def texts_of(self, record: Record) -> list[Record]:
        """Return the candidate and the reference. Raises InputError for a single text."""
        if record.pair is None:
            raise InputError(f"{record.where}: is one text, not a candidate and a reference", SKIP)
        return [record._replace(text=text, pair=None) for text in (record.text, record.pair)]

    def prepare(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return texts as bert-score tokenizes them: without white space around them.

        Tokenizers that treat the first word of a text differently see a blank before it.
        """
        prefix = " " if self.head.tokenizer.kind.name in PREFIXED_CLASSES else ""
        prepared = []
        for record in records:
            text = record.text
            if isinstance(text, str):
                text = text.strip()
                text = f"{prefix}{text}" if text else ""
            prepared.append(record._replace(text=text))
        return prepared

    def _idf_weights(self, blocks: Sequence[Sequence[Record]]) -> IdfWeights:
        """Return the weights of tokens by the number of references that have them."""
        text_counts: Counter[int] = Counter()
        count = 0
        for block in blocks:
            references = [Record(record.pair) for record in block if record.pair is not None]
            tokens = self.head.tokenizer.encode_records(self.prepare(references), self.layout)
            for ids in tokens.lists("input_ids"):
                text_counts.update({*ids})
            count += len(references)
        return IdfWeights(text_counts, count)

    def _weighted(self, row: Encoded, weights: IdfWeights | None) -> Encoded:
        """Return a text with the weights of its tokens, 0 for tokens like [CLS]."""
        is_inside = self.tokens_inside(row)
        tokens = zip(row.columns["input_ids"], is_inside, strict=True)
        column = [
            (1.0 if weights is None else weights[token_id]) if inside else 0.0
            for token_id, inside in tokens
        ]
        return row._replace(columns=row.columns | {WEIGHTS: column})

    def judge(self, batch: Sequence[Encoded]) -> list[Result]:
        """Return the result of each pair. Vectors are computed and compared in blocks."""
        results = []
        ends = accumulate(row.length for row in batch)
        rows = [*zip(ends, batch, strict=True)]
        pairs = [*zip(rows[::2], rows[1::2], strict=True)]
        for _, block in groupby(pairs, lambda pair: pair[1][0] // TOKENS_PER_BLOCK):
            texts = [row for pair in block for _, row in pair]
            compared = super().judge(texts)
            for result, reference in zip(compared, texts[1::2], strict=True):
                record = result.record._replace(pair=reference.record.text)
                results.append(result._replace(record=record))
        return results

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return precision, recall and F1 of a pair, from the vectors of its tokens [L, D].

        All are 0 if one of the texts has no tokens. Precision or recall is None if all tokens that
        it averages have weight 0 (``idf``), and F1 is then 0.
        """
        if not all(any(self.tokens_inside(item)) for item in items):
            return self.blank
        candidate, reference = map(unit_vectors, outputs)
        cosines = candidate @ reference.T
        precision = weighted_mean(cosines.max(axis=1), items[0].columns[WEIGHTS])
        recall = weighted_mean(cosines.max(axis=0), items[1].columns[WEIGHTS])
        return {"precision": precision, "recall": recall, "f1": f1_score(precision, recall)}


@dataclass(frozen=True)
class IdfWeights:
    """The inverse document frequency of tokens, smoothed as by bert-score."""

    text_counts: Mapping[int, int]  # token id -> number of references that have it
    count: int  # of references

    def __getitem__(self, token_id: int) -> float:
        return log((self.count + 1) / (self.text_counts.get(token_id, 0) + 1))


def weighted_mean(values: np.ndarray, weights: Sequence[float]) -> float | None:
    """Return the weighted mean of values [n]; None if all weights are 0."""
    total = sum(weights)
    return float(values @ np.array(weights)) / total if total else None


def f1_score(precision: float | None, recall: float | None) -> float:
    """Return the harmonic mean of precision and recall, as bert-score.

    0 if it is undefined: if one of them is None, or if their sum is 0.
    """
    if precision is None or recall is None or precision + recall == 0:
        return 0.0
    return 2 * precision * recall / (precision + recall)
