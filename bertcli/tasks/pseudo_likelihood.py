"""Pseudo-log-likelihood of texts: each token is masked in turn, and predicted from all others.

Source: Masked Language Model Scoring (Salazar et al., 2020), section 2. With `within_word`, the
later tokens of the same word are masked, too: A Better Way to Do Masked Language Model Scoring
(Kauf and Ivanova, 2023), section 3. Scores equal those of minicons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress, groupby
from math import exp, fsum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bertcli.embedding.pooling import split_by_sizes
from bertcli.engines.engine import PackedTokens, ReductionByText, library_of, result_of
from bertcli.errors import InputError, option
from bertcli.formats.row_offsets import offsets_of
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.batch import FIRST_CHARACTERS
from bertcli.tasks.fill_mask import vocabulary_logits
from bertcli.tasks.head import SPECIAL_MASK, Head, HeadTask, Settings
from bertcli.tokenizing.batch import Encoded, Layout

if TYPE_CHECKING:
    from bertcli.engines.engine import Indices

COPIED_TOKENS = 1 << 18  # tokens of the masked copies that are run together
COPIES_PER_TEXT = 32  # approximately: windows of texts are smaller by this factor
MAX_EXPONENT = 709.0  # the largest whole number whose exponential is a float
NO_WORD = -1  # word index of a token outside of words
BLANK_TOKEN = {"token": "", "logprob": 0.0, "start": 0, "end": 0}


class ScoredTokens(NamedTuple):
    """Tokens of a text that are masked and predicted, each in a copy of the text."""

    columns: np.ndarray  # of the text [L, n]: token ids, token types, ids of each extra embedding
    positions: Indices  # [k]
    words: Indices | None  # [L]: index of each token's word; None to mask one token at a time

    @property
    def size(self) -> int:
        """The number of tokens of all copies."""
        return len(self.positions) * len(self.columns)

    @property
    def ids(self) -> Indices:
        """The ids of the tokens [k]."""
        return self.columns[self.positions, 0].astype(np.int64)

    def masked_copies(self, mask_id: int) -> np.ndarray:
        """Return a copy of the text for each token, [k, L, n], with that token masked.

        With ``words``, later tokens of its word are masked, too.
        """
        copies = np.repeat(self.columns[None], len(self.positions), axis=0)
        positions = self.positions[:, None]
        every_position = np.arange(len(self.columns))
        is_masked = every_position == positions
        if self.words is not None:
            words = self.words[positions]
            in_word = (self.words == words) & (words != NO_WORD)
            is_masked |= in_word & (every_position > positions)
        copies[..., 0][is_masked] = mask_id
        return copies


@dataclass(frozen=True)
class MaskedLMScorer(HeadTask):
    """A masked language model that is ready to score texts.

    With ``per_token``, results have the log probability of each token.
    """

    architecture: ClassVar[str] = "BertForMaskedLM"

    per_token: bool = False
    within_word: bool = False

    @classmethod
    def open_head(cls, folder: ModelFolder, settings: Settings) -> Head:
        """Load a model with a masked-LM head, which computes one token of each text."""
        return Head.open(folder, cls.architecture, settings, one_given=True)

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        fields: dict[str, Any] = {"score": 0.0, "n_tokens": 0, "perplexity": 0.0}
        return fields | ({"tokens": [BLANK_TOKEN]} if self.per_token else {})

    @property
    def layout(self) -> Layout:
        """The layout of the tokens of a text."""
        columns = [SPECIAL_MASK, "word_ids"] if self.within_word else [SPECIAL_MASK]
        if self.per_token:
            columns += ["tokens", "offset_mapping"]
        return self.head.layout(*columns)

    @property
    def window_characters(self) -> int:
        """The maximum number of characters of a window, each of whose texts is run many times."""
        return max(FIRST_CHARACTERS, super().window_characters // COPIES_PER_TEXT)

    @cached_property
    def mask_id(self) -> int:
        """The id of the mask token, which every model with a masked-LM head has."""
        tokenizer = self.head.tokenizer
        return tokenizer.special_ids()[tokenizer.roles["mask_token"]]

    def ask(self, item: Encoded) -> Encoded:
        """Return the item. Raises InputError for a pair."""
        if item.record.pair is not None:
            raise InputError(
                f"{item.record.where}: is a pair of texts, and single texts have a likelihood",
                f"{option('pairs')} compares the texts of pairs",
            )
        return item

    def outputs(self, batch: Sequence[Encoded]) -> list[np.ndarray]:
        """Return the log probabilities of the scored tokens of each text, float32 [k]."""
        texts = self._texts(batch)
        found = [self._log_probabilities(group) for group in copied_together(texts)]
        counts = [len(text.positions) for text in texts]
        return split_by_sizes(np.concatenate([np.zeros(0, np.float32), *found]), counts)

    def _texts(self, batch: Sequence[Encoded]) -> list[ScoredTokens]:
        """Return the scored tokens of each text."""
        tokens = self.model_input(batch)
        texts = []
        columns_of_texts = split_by_sizes(tokens.columns, tokens.lengths.tolist())
        for item, columns in zip(batch, columns_of_texts, strict=True):
            positions = np.flatnonzero(self.tokens_inside(item))
            words = None
            if self.within_word:
                indices = item.columns["word_ids"]
                words = np.array([NO_WORD if word is None else word for word in indices], np.int64)
            texts.append(ScoredTokens(columns, positions, words))
        return texts

    def _log_probabilities(self, texts: Sequence[ScoredTokens]) -> np.ndarray:
        """Return the log probabilities of the scored tokens of texts, float32 [n]."""
        runtime = self.head.runtime
        copies = [text.masked_copies(self.mask_id) for text in texts]
        width = copies[0].shape[-1]
        lengths = [len(text.columns) for text in texts for _ in text.positions]
        tokens = PackedTokens(
            np.concatenate([columns.reshape(-1, width) for columns in copies]),
            offsets_of(np.array(lengths)),
            [*runtime.config.extra_embeddings],
            read=np.concatenate([text.positions for text in texts]),
        )
        ids = np.concatenate([text.ids for text in texts])
        return np.asarray(result_of(runtime.run(tokens, ReductionByText(log_probabilities, ids))))

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the score of a text from the log probabilities of its tokens [k]."""
        (item,) = items
        log_probabilities = outputs[0].tolist()
        score = fsum(log_probabilities)
        count = len(log_probabilities)
        fields = {
            "score": score,
            "n_tokens": count,
            "perplexity": perplexity(score, count),
        }
        if not self.per_token:
            return fields
        rows = zip(item.columns["tokens"], item.columns["offset_mapping"], strict=True)
        scored = compress(rows, self.tokens_inside(item))
        tokens = [
            {"token": token, "logprob": value, "start": start, "end": end}
            for (token, (start, end)), value in zip(scored, log_probabilities, strict=True)
        ]
        return fields | {"tokens": tokens}


def copied_together(texts: Sequence[ScoredTokens]) -> Iterator[list[ScoredTokens]]:
    """Yield texts in groups whose copies have about ``COPIED_TOKENS`` tokens.

    The tokens of a long text are divided among groups. Texts without scored tokens are left out.
    """
    parts = []
    for text in texts:
        step = max(1, COPIED_TOKENS // max(1, len(text.columns)))
        for start in range(0, len(text.positions), step):
            parts.append(text._replace(positions=text.positions[start : start + step]))
    ends = accumulate(part.size for part in parts)
    for _, group in groupby(zip(ends, parts, strict=True), lambda pair: pair[0] // COPIED_TOKENS):
        yield [part for _, part in group]


def log_probabilities(model: Any, states: Any, ids: Indices) -> Any:
    """Return the log probabilities [n] of tokens ``ids`` [n] at ``states`` [n, hidden].

    Row i is the log softmax of the logits at state i over the vocabulary, at ``ids[i]``.
    """
    library = library_of(states)
    found = []
    start = 0
    for logits in vocabulary_logits(model, states):
        rows = np.arange(len(logits))
        with np.errstate(invalid="ignore"):  # infinite logits are rejected later, with their text
            maximum = library.amax(logits, -1)
            total = library.exp(logits - maximum[:, None]).sum(-1)
            values = logits[rows, ids[start : start + len(logits)]]
            found.append(values - maximum - library.log(total))
        start += len(logits)
    return library.concat(found)


def perplexity(score: float, count: int) -> float | None:
    """Return the exponential of the mean negative log probability of ``count`` tokens.

    None without tokens, and for a number that no float can hold.
    """
    if not count or -score / count > MAX_EXPONENT:
        return None
    return exp(-score / count)
