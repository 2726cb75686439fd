"""What a model's folder says of its tokenizer: the core, the special tokens, limits and sides.

The core is of the tokenizers library. What its tokenizer.json says about truncation and padding is
overridden: how long a text may become is decided here, for single records and for arrays alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bertcli.checkpoints.scan import bert_folder, is_static
from bertcli.errors import InputError, ModelError, UsageError, counted
from bertcli.files.typed_json import NOTHING, JsonObject
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.model_files import (
    SIDES,
    Loaded,
    load,
    load_as_it_is,
    read_settings,
    sequence_limit,
)
from bertcli.tokenizing.tokenizer_classes import needs_prefix_space, with_prefix_space
from bertcli.tokenizing.truncation import TooShortError, Window, windows

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers import Tokenizer as Core
    from typing_extensions import Self

    from bertcli.tokenizing.wordpiece import WordPieceEngine


MOST_PADDED = 1 << 17  # tokens; no encoder reads as many


class LoadedTokenizer:
    """The tokenizer of one folder. ``limit`` is the longest sequence its model takes."""

    def __init__(self, loaded: Loaded, settings: JsonObject, limit: int | None) -> None:
        self.core, self.kind, self.roles, self.warnings = loaded
        self.settings = settings
        self.limit = limit
        self.truncation_side = settings.choice("truncation_side", SIDES) or "right"
        self.padding_side = settings.choice("padding_side", SIDES) or "right"
        self.literals = SpecialTextCounter(self.core)
        self.state = _state(self.core)  # of the core, which others are made from
        self.reads_types = True  # whether the model that it is loaded for takes token types
        self.clean_up: bool | None = settings.switch("clean_up_tokenization_spaces")
        self.core.no_truncation()
        self.core.no_padding()

    @classmethod
    def open(cls, folder: Path, *, parse_special: bool = True) -> Self:
        """Return the tokenizer of a folder: its tokenizer.json, or else its vocab.txt.

        A sentence model may keep them in a part of its own, which its modules.json names.
        ``parse_special`` tells whether a literal "[SEP]" in a text becomes that special token.
        Raises ModelError when a file is missing or broken, or a special token is not there.
        """
        if not folder.is_dir():
            raise ModelError(f"{folder}: folder not found")
        if is_static(folder):
            loaded = load_as_it_is(bert_folder(folder))
            return cls(loaded, NOTHING, None)._parsing(parse_special)
        folder = bert_folder(folder)
        settings = read_settings(folder)
        loaded = load(folder, settings)
        tokenizer, core = cls(loaded, settings, sequence_limit(folder, settings)), loaded.core
        special = core.num_special_tokens_to_add(False)
        if tokenizer.limit is not None and tokenizer.limit < special:
            raise ModelError(
                f"{folder}: a limit of {counted(tokenizer.limit, 'token')} leaves no room for the "
                f"{special} special tokens",
                "correct model_max_length, max_seq_length or max_position_embeddings",
            )
        return tokenizer._parsing(parse_special)

    def _parsing(self, special: bool) -> Self:
        self.core.encode_special_tokens = not special
        self.state = _state(self.core)
        self.literals = SpecialTextCounter(self.core)
        return self

    @cached_property
    def engine(self) -> WordPieceEngine:
        """What makes ids of many texts at once."""
        from bertcli.tokenizing.wordpiece import WordPieceEngine

        return WordPieceEngine(self.core)

    @cached_property
    def words_core(self) -> Core:
        """The core for texts that are split into words: with ``add_prefix_space``, as all need it.

        Without it, byte-level BPE would read words as parts of one long word.
        """
        if not needs_prefix_space(self.core):
            return self.core
        core = with_prefix_space(self.core)
        core.encode_special_tokens = self.core.encode_special_tokens
        return core

    @cached_property
    def words_engine(self) -> WordPieceEngine:
        """What makes ids of many words at once."""
        from bertcli.tokenizing.wordpiece import WordPieceEngine

        return self.engine if self.words_core is self.core else WordPieceEngine(self.words_core)

    def notice_changes(self) -> None:
        """Forget what was remembered of a core that has changed since, as by ``add_tokens``."""
        if self.state != (now := _state(self.core)):
            self.state = now
            self.literals = SpecialTextCounter(self.core)
            for name in ("engine", "words_core", "words_engine"):
                self.__dict__.pop(name, None)

    @property
    def engine_used(self) -> str:
        """What made the ids, and why nothing faster."""
        made = self.__dict__.get("engine")
        return made.why if made else "tokenizers, as there is little text"

    def __len__(self) -> int:
        """Return the number of tokens, added ones included."""
        return self.core.get_vocab_size()

    def beyond(self, rows: int) -> tuple[str, int] | None:
        """Return the first token, and its id, that a table of so many rows does not have."""
        size = self.core.get_vocab_size()
        if size <= rows and all(map(self.core.id_to_token, range(size))):
            return None  # no id is left out, so there is none beyond them; a dict takes longer
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

    @cached_property
    def model_inputs(self) -> list[str]:
        """The columns that a call from Python returns unasked."""
        said = self.settings.texts("model_input_names")
        types = ["token_type_ids"] if self.kind.token_types else []
        return ["input_ids", *types, "attention_mask"] if said is None else said

    @property
    def padding_id(self) -> int:
        """The id of the padding token. ModelError for a vocabulary without one."""
        found = self.core.token_to_id(self.roles["pad_token"])
        if found is None:
            raise ModelError(
                "this tokenizer has no padding token", "name a token as pad_token in its folder"
            )
        return found

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

    def padded_length(self, layout: Layout, longest: int) -> int:
        """Return the length that padding makes of texts of which the longest has so many tokens."""
        length = longest if layout.padding == "longest" else self.padded_to(layout)
        step = layout.pad_to_multiple_of or 1
        return -(-length // step) * step

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
            raise cannot_cut(record, limit, error) from None


def cannot_cut(record: Record, limit: int, error: TooShortError) -> InputError:
    """Return the error for a record that cannot be truncated as asked."""
    return InputError(
        f"{record.where}: cannot be truncated to {limit} tokens: {error}",
        f"{error.way}, a larger --max-length, or --on-error skip",
    )


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
        *(
            part and part.__getstate__()
            for part in (core.normalizer, core.pre_tokenizer, core.post_processor)
        ),
    )


class SpecialTextCounter:
    """Finds the special tokens of a tokenizer in texts."""

    def __init__(self, core: Tokenizer) -> None:
        added = core.get_added_tokens_decoder().values()
        names = [token.content for token in added if token.special]
        used = {character for name in names for character in name}
        self.between = next(chr(code) for code in count(10) if chr(code) not in used)
        self.patterns = [
            (first, _any_of(name for name in names if name[0] == first))
            for first in dict.fromkeys(name[0] for name in names)
        ]

    def count(self, texts: Iterable[str]) -> int:
        """Return how often they occur; texts without their first character cost little."""
        whole = self.between.join(texts)
        return sum(
            len(pattern.findall(whole)) for first, pattern in self.patterns if first in whole
        )


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
