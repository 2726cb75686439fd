"""Text to tokens and back: with the tokenizer of a model folder.

    tokenizer = Tokenizer.load(Path("bert-base-uncased"))
    encoded = tokenizer.encode([Record("I love NLP!")], Layout())
    tokenizer.decode(encoded[0].columns["input_ids"])   # '[CLS] i love nlp! [SEP]'

Splitting into pieces is done by the tokenizers library. Truncation, windows and padding are ours:
what a tokenizer.json says about them is overridden, and what was cut is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from bertcli.errors import BertcliError, InputError
from bertcli.records.records import Record, TextBlock, texts_of
from bertcli.tokenizing.columns import (
    COLUMNS,
    Column,
    Encoded,
    Layout,
    offsets_in,
    padded,
    select,
    span,
)
from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer
from bertcli.tokenizing.truncation import Window

if TYPE_CHECKING:
    from tokenizers import Encoding

    from bertcli.tokenizing.ragged import Ragged

FEW = 256  # records that do not pay for the import of numpy
RAGGED = {"input_ids", "token_type_ids", "attention_mask", "special_tokens_mask"}
REPEATING = RAGGED - {"input_ids"}
FAST_COLUMNS = {*RAGGED, "sequence_ids"}  # encode_batch_fast has no more
# What clean_up_tokenization_spaces replaces in transformers, in this order.
CLEAN = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def _cleaned(text: str) -> str:
    for blanks in CLEAN:
        text = text.replace(blanks, blanks.strip())
    return text


def _stop(error: BertcliError) -> NoReturn:
    raise error


class Tokenizer(LoadedTokenizer):
    """The tokenizer of one folder: texts to tokens and back."""

    def count_literals(self, records: Sequence[Record]) -> int:
        """Return how many special tokens are written out in the texts, and parsed as such."""
        if self.core.encode_special_tokens:
            return 0
        self.notice_changes()
        texts = records.texts if isinstance(records, TextBlock) else texts_of(records)
        return self.literals.count(texts)

    def encode(
        self,
        records: Sequence[Record],
        layout: Layout,
        *,
        skip: Callable[[InputError], None] = _stop,
        first: int = 0,
    ) -> list[Encoded]:
        """Return the records as columns; with ``layout.overflowing`` one item a window.

        ``first`` is the number of the first record in the run. A record that cannot be truncated
        as asked goes to ``skip`` (default: raise).
        """
        if len(records) >= FEW and RAGGED.issuperset(layout.columns):
            from bertcli.tokenizing.ragged import RaggedMaker

            maker = RaggedMaker(self, layout)
            if maker.fits:
                ragged, rows = maker(records, skip)
                some = [records[at] for at in rows]
                return ragged.encoded(some, layout.columns, (first + at for at in rows))
        return self.encode_each(records, layout, skip=skip, first=first)

    def ragged(
        self,
        records: Sequence[Record],
        layout: Layout,
        *,
        skip: Callable[[InputError], None] = _stop,
    ) -> Ragged:
        """Return the records as flat arrays, for columns in RAGGED."""
        from bertcli.tokenizing.ragged import RaggedMaker

        return RaggedMaker(self, layout)(records, skip)[0]

    def encode_each(
        self,
        records: Sequence[Record],
        layout: Layout,
        *,
        skip: Callable[[InputError], None] = _stop,
        first: int = 0,
    ) -> list[Encoded]:
        """Do what `encode` does record by record, for any columns."""
        self.notice_changes()
        limit = self.cut_at(layout)
        found: list[Encoded] = []
        encodings = self._encodings(records, layout)
        for sample, (record, encoding) in enumerate(zip(records, encodings, strict=True), first):
            encoded = Encoded(record, self._columns(record, encoding, layout), 0, sample)
            if limit is None or (encoded.length <= limit and not layout.overflowing):
                found.append(encoded)
                continue
            try:
                found.extend(self._windows(encoded, encoding, layout, limit))
            except InputError as error:
                skip(error)
        return self.pad(found, layout)

    def pad(self, batch: list[Encoded], layout: Layout) -> list[Encoded]:
        """Return the items with their columns made equally long, where the layout asks for it."""
        match layout.padding:
            case "do_not_pad":
                return batch
            case "longest":
                length = max((item.length for item in batch), default=0)
            case _:
                length = self.padded_to(layout)
        step = layout.pad_to_multiple_of or 1
        length = -(-length // step) * step
        side = layout.padding_side or self.padding_side
        token = self.roles["pad_token"]
        return [padded(item, length, side, token, self.padding_id) for item in batch]

    def decode(
        self, ids: Sequence[int], *, skip_special: bool = False, clean_up: bool | None = None
    ) -> str:
        """Return the text of these ids. Raises IndexError for one that is not in the vocabulary.

        ``clean_up`` drops blanks before punctuation and in contractions. None is what the folder
        says, as in transformers; without a word there, blanks go only where no token comes between.
        """
        self._check_ids(ids)
        if clean_up is False and hasattr(self.core.decoder, "cleanup"):
            from tokenizers import decoders

            plain = decoders.WordPiece(self.core.decoder.prefix, cleanup=False)
            return plain.decode(self.tokens_of(ids, skip_special=skip_special))
        text = self.core.decode(ids, skip_special)
        return _cleaned(text) if clean_up or (clean_up is None and self.clean_up) else text

    def tokens_of(self, ids: Sequence[int], *, skip_special: bool = False) -> list[str]:
        """Return the token of each id. Raises IndexError for one that is not in the vocabulary."""
        self._check_ids(ids)
        special = self.core.get_added_tokens_decoder() if skip_special else {}
        kept = (index for index in ids if not (index in special and special[index].special))
        return [self.core.id_to_token(index) or "" for index in kept]

    def ids_of(self, tokens: Iterable[str]) -> tuple[list[int], list[str]]:
        """Return the id of each token, and the tokens that are unknown and became [UNK]."""
        unk = self.special_ids()[self.roles["unk_token"]]
        found = [(token, self.core.token_to_id(token)) for token in tokens]
        unknown = [token for token, index in found if index is None]
        return [unk if index is None else index for _, index in found], unknown

    def _check_ids(self, ids: Sequence[int]) -> None:
        for index in set(ids):
            known = 0 <= index < 2**32 and self.core.id_to_token(index) is not None
            if not known:
                raise IndexError(index)

    def _encodings(self, records: Sequence[Record], layout: Layout) -> list[Encoding]:
        special = layout.special_tokens
        split = any(isinstance(record.text, list) for record in records)
        if len(records) == 1:  # without the start of a thread pool
            text, pair = records[0][:2]
            return [self.core.encode(text, pair, split, special)]
        inputs = [text if pair is None else (text, pair) for text, pair, *_ in records]
        fast = FAST_COLUMNS.issuperset(layout.columns)
        run = self.core.encode_batch_fast if fast else self.core.encode_batch
        return run(inputs, split, special)

    def _columns(self, record: Record, encoding: Encoding, layout: Layout) -> dict[str, Column]:
        columns: dict[str, Column] = {"input_ids": encoding.ids}
        for name in layout.columns:
            if name == "offset_mapping" and layout.offset_unit != "char":
                columns[name] = offsets_in(record, encoding, layout.offset_unit)
            elif name != "input_ids":
                columns[name] = COLUMNS[name](encoding)
        return columns

    def _windows(
        self, encoded: Encoded, encoding: Encoding, layout: Layout, limit: int
    ) -> list[Encoded]:
        """Truncate an item that is too long, or split it into all of its windows."""
        sequences = encoding.sequence_ids
        first, second = (span(sequences, which) for which in (0, 1))
        lengths = first[1] - first[0], second[1] - second[0]
        found = self.windows_of(encoded.record, lengths, layout, limit)
        shared: dict[tuple[object, ...], Column] = {}  # equal masks: there may be many windows

        def part(name: str, window: Window) -> Column:
            column = select(encoded.columns[name], window, first, second)
            return shared.setdefault(tuple(column), column) if name in REPEATING else column

        return [
            encoded._replace(
                columns={name: part(name, window) for name in encoded.columns},
                cut=0 if layout.overflowing else sum(lengths) - sum(b - a for a, b in window),
            )
            for window in (found if layout.overflowing else found[:1])
        ]
