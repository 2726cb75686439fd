"""The limit that model2vec sets on the characters of a text, before it becomes tokens.

A text keeps as many as its limit of tokens has when each is of the median length of the vocabulary;
what is beyond is never tokenized there. Here it is, once, where a text is that long: truncation is
counted. Source: model2vec 0.10, StaticModel.encode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertcli.records.records import Record, Text, TextBlock
from bertcli.tokenizing.columns import Layout, RaggedBatch
from bertcli.tokenizing.run import Batch, TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer


@dataclass(frozen=True)
class CharacterLimit:
    """How many characters of each text are read."""

    most: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, tokens: int) -> CharacterLimit:
        """Return the limit of texts of so many tokens."""
        return cls(tokens * int(np.median([*map(len, tokenizer.core.get_vocab())])))

    def cut(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return records with the characters that are read; words that came split are not cut."""
        block = TextBlock.of(records)
        if not any(len(text) > self.most for text in block.strings):
            return records
        pairs = block.pairs and [None if pair is None else self._cut(pair) for pair in block.pairs]
        return block.with_texts([*map(self._cut, block.texts)], pairs)

    def count(
        self,
        batch: Batch,
        counts: TokenCounts,
        whole: Sequence[Record],
        tokenizer: Tokenizer,
        layout: Layout,
    ) -> Batch:
        """Return a window, and its counts, with what was cut of the ``whole`` texts in them."""
        long = [at for at, record in enumerate(whole) if self._is_long(record)]
        if not long:
            return batch
        layout = replace(layout, truncation="do_not_truncate", overflowing=False)
        items = list(batch) if not isinstance(batch, RaggedBatch) else []
        for at, item in zip(
            long, tokenizer.encode_records([whole[at] for at in long], layout), strict=True
        ):
            if isinstance(batch, RaggedBatch):
                counted, left = int(batch.cut[at]), int(batch.lengths[at])
            else:
                counted, left = items[at].cut, items[at].length
            # 1 where the piece of a word has more tokens than the word
            cut = item.length - left if item.length >= left else 1
            if isinstance(batch, RaggedBatch):
                batch.cut[at] = cut
            else:
                items[at] = items[at]._replace(cut=cut)
            counts.truncated += not counted and cut > 0
            counts.cut += cut - counted
        return batch if isinstance(batch, RaggedBatch) else items

    def _cut(self, text: Text) -> Text:
        return text if isinstance(text, list) else text[: self.most]

    def _is_long(self, record: Record) -> bool:
        texts = record.text, record.pair
        return any(isinstance(text, str) and len(text) > self.most for text in texts)
