"""Text to tokens and back: with the tokenizer of a model folder.

    tokenizer = Tokenizer.load(Path("bert-base-uncased"))
    encoded = tokenizer.encode([Record("I love NLP!")], Layout())
    tokenizer.decode(encoded[0].columns["input_ids"])   # '[CLS] i love nlp! [SEP]'

Splitting into pieces is done by the tokenizers library. Truncation, windows and padding are ours:
what a tokenizer.json says about them is overridden, and what was cut is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from bertcli.checkpoints.scan import bert_folder
from bertcli.errors import BertcliError, InputError, ModelError, UsageError
from bertcli.files.typed_json import JsonObject
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
from bertcli.tokenizing.model_files import (
    SIDES,
    add_template,
    check,
    load,
    read_settings,
    roles_of,
    sequence_limit,
)
from bertcli.tokenizing.special_text import SpecialTextCounter
from bertcli.tokenizing.truncation import TooShortError, Window, windows

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Core

    from bertcli.tokenizing.ragged import Ragged
    from bertcli.tokenizing.wordpiece import WordPieceEngine

FEW = 256  # records that do not pay for the import of numpy
RAGGED = {"input_ids", "token_type_ids", "attention_mask", "special_tokens_mask"}
REPEATING = RAGGED - {"input_ids"}
FAST_COLUMNS = {*RAGGED, "sequence_ids"}  # encode_batch_fast has no more
MOST_PADDED = 1 << 17  # tokens; no encoder reads as many
# What clean_up_tokenization_spaces replaces in transformers, in this order.
CLEAN = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def _cleaned(text: str) -> str:
    for blanks in CLEAN:
        text = text.replace(blanks, blanks.strip())
    return text


def _stop(error: BertcliError) -> NoReturn:
    raise error


class Tokenizer:
    """The tokenizer of one folder. ``limit`` is the longest sequence its model takes."""

    def __init__(self, core: Core, settings: JsonObject, limit: int | None) -> None:
        self.core = core
        self.limit = limit
        self.roles = roles_of(settings)
        self.truncation_side = settings.choice("truncation_side", SIDES) or "right"
        self.padding_side = settings.choice("padding_side", SIDES) or "right"
        self.warnings: list[str] = []
        self.literals = SpecialTextCounter(core)
        self.state = _state(core)  # of the core, which the engine and the literals are made from
        self.clean_up: bool | None = settings.switch("clean_up_tokenization_spaces")
        core.no_truncation()
        core.no_padding()

    @classmethod
    def load(cls, folder: Path, *, parse_special: bool = True) -> Tokenizer:
        """Return the tokenizer of a folder: its tokenizer.json, or else its vocab.txt.

        A sentence model may keep them in a part of its own, which its modules.json names.
        ``parse_special`` tells whether a literal "[SEP]" in a text becomes that special token.
        Raises ModelError when a file is missing or broken, or a special token is not there.
        """
        folder = bert_folder(folder)
        settings = read_settings(folder)
        core, warnings = load(folder, settings)
        tokenizer = cls(core, settings, sequence_limit(folder, settings))
        tokenizer.warnings = warnings + check(core, tokenizer.roles, folder)
        if core.post_processor is None:
            add_template(core, tokenizer.roles["cls_token"], tokenizer.roles["sep_token"])
        special = core.num_special_tokens_to_add(False)
        if tokenizer.limit is not None and tokenizer.limit < special:
            raise ModelError(
                f"{folder}: a limit of {tokenizer.limit} tokens leaves no room for the {special} "
                "special tokens",
                "correct model_max_length, max_seq_length or max_position_embeddings",
            )
        core.encode_special_tokens = not parse_special
        tokenizer.state = _state(core)
        tokenizer.literals = SpecialTextCounter(core)
        return tokenizer

    @cached_property
    def engine(self) -> WordPieceEngine:
        """What makes ids of many texts at once."""
        from bertcli.tokenizing.wordpiece import WordPieceEngine

        return WordPieceEngine(self.core)

    def notice_changes(self) -> None:
        """Forget what was remembered of a core that has changed since, as by ``add_tokens``."""
        if self.state != (now := _state(self.core)):
            self.state = now
            self.literals = SpecialTextCounter(self.core)
            self.__dict__.pop("engine", None)

    @property
    def engine_used(self) -> str:
        """What made the ids, and why nothing faster."""
        made = self.__dict__.get("engine")
        return made.why if made else "tokenizers, as there are few texts"

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, added ones included."""
        return self.core.get_vocab_size()

    def beyond(self, rows: int) -> tuple[str, int] | None:
        """Return the first token, and its id, that a table of so many rows does not have."""
        vocabulary = self.core.get_vocab()
        if max(vocabulary.values(), default=-1) < rows:
            return None
        return min(
            ((token, index) for token, index in vocabulary.items() if index >= rows),
            key=lambda entry: entry[1],
        )

    def special_ids(self) -> dict[str, int]:
        """Return special token -> id, in the order of [UNK], [SEP], [PAD], [CLS], [MASK]."""
        found = {token: self.core.token_to_id(token) for token in self.roles.values()}
        return {token: index for token, index in found.items() if index is not None}

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

    @property
    def padding_id(self) -> int:
        """The id of the padding token."""
        return self.special_ids()[self.roles["pad_token"]]

    def max_length(self, layout: Layout) -> int:
        """Return the length to truncate or pad to: the one asked for, else the model's limit."""
        if layout.max_length is not None:
            return layout.max_length
        if self.limit is None:
            raise UsageError("this tokenizer has no length limit", "give --max-length")
        return self.limit

    def padded_to(self, layout: Layout) -> int:
        """Return the length that padding to ``max_length`` makes of every text.

        Raises UsageError where a limit that no text comes near would fill the memory.
        """
        length = self.max_length(layout)
        if layout.max_length is None and length > MOST_PADDED:
            raise UsageError(
                f"--padding max_length would pad every text to {length:,} tokens, the limit that "
                "this model's files name",
                "give --max-length N",
            )
        return length

    def cut_at(self, layout: Layout) -> int | None:
        """Return the length that truncation keeps; None without truncation.

        Raises UsageError for a length that the special tokens fill, or a stride that does not fit.
        """
        if layout.truncation == "do_not_truncate":
            return None
        length = self.max_length(layout)
        room = self.room(length, layout, pair=False)
        if layout.stride and layout.stride >= room:
            if not room:
                raise UsageError(f"--max-length {length} leaves no room for text")
            raise UsageError(
                f"--stride {layout.stride} must be less than the {room} tokens of a window",
                f"--max-length {length} without special tokens is {room}",
            )
        return length

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

    def windows_of(
        self, record: Record, lengths: tuple[int, int], layout: Layout, limit: int
    ) -> list[Window]:
        """Return the windows of a record whose texts have so many tokens.

        Raises InputError when it cannot be truncated as asked.
        """
        try:
            return windows(
                lengths[0],
                None if record.pair is None else lengths[1],
                self.room(limit, layout, pair=record.pair is not None),
                layout.truncation,
                side=layout.truncation_side or self.truncation_side,
                stride=layout.stride if layout.overflowing else 0,
            )
        except TooShortError as error:
            raise InputError(
                f"{record.where}: cannot be truncated to {limit} tokens: {error}",
                f"{error.way}, a larger --max-length, or --on-error skip",
            ) from None

    def room(self, length: int, layout: Layout, *, pair: bool) -> int:
        """Return how many tokens of a text or a pair fit beside the special tokens.

        Raises UsageError when those alone are too many.
        """
        special = self.core.num_special_tokens_to_add(pair) if layout.special_tokens else 0
        if length < special:
            raise UsageError(
                f"--max-length {length} leaves no room for the {special} special tokens",
                "increase it, or use --no-special-tokens",
            )
        return length - special


def _state(core: Core) -> tuple[object, ...]:
    """Return what we derive from a core and a caller may change, in a form that is cheap to make.

    The words of the model itself are left out: nothing adds to those but a new model.
    """
    added = core.get_added_tokens_decoder()
    return (
        core.get_vocab_size(),
        type(core.model).__name__,
        core.encode_special_tokens,
        tuple((index, repr(token)) for index, token in added.items()),
        *(part and part.__getstate__() for part in (core.normalizer, core.pre_tokenizer)),
    )
