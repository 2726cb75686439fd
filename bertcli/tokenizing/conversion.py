"""Ids, tokens and texts: one into the other, with the names and meanings of transformers.

tokenizer.convert_tokens_to_ids(["love", "##p"])              # [2293, 2361]
tokenizer.build_inputs_with_special_tokens([2293], [2361])    # [101, 2293, 102, 2361, 102]
tokenizer.create_token_type_ids_from_sequences([2293], [2361])  # [0, 0, 0, 1, 1]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError, ModelError
from bertcli.tokenizing.frame import Frame, frame_of
from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer
from bertcli.tokenizing.tokenizer_classes import ROLES

if TYPE_CHECKING:
    from tokenizers import AddedToken

# What clean_up_tokenization_spaces replaces in transformers, in this order.
CLEAN = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def _cleaned(text: str) -> str:
    for blanks in CLEAN:
        text = text.replace(blanks, blanks.strip())
    return text


def as_lists(ids: Any) -> Any:
    """Return what may be an array or a tensor as numbers and lists."""
    return ids.tolist() if hasattr(ids, "tolist") else ids


class TokenConverter(LoadedTokenizer):
    """A tokenizer's vocabulary and template."""

    def __getattr__(self, name: str) -> Any:
        """Return cls_token, cls_token_id, sep_token and so on; None for an id that is not there."""
        role = name.removesuffix("_id")
        if role not in ROLES:
            raise AttributeError(f"a tokenizer has no attribute {name!r}")
        token = self.roles[role]
        return token if role == name else self.core.token_to_id(token)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens, added ones included."""
        added = self.core.get_added_tokens_decoder().items()
        special = (index for index, token in added if token.special)
        return list(dict.fromkeys((*self.special_ids().values(), *special)))

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, added ones included."""
        return self.tokens_of(self.all_special_ids)

    @property
    def vocab_size(self) -> int:
        """The number of tokens without added ones, which `len` counts as well."""
        return self.core.get_vocab_size(with_added_tokens=False)

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id."""
        return self.core.get_vocab()

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str | list[str]:
        """Return the text of an id, a list or an array of ids; a list of texts for many of them.

        Raises InputError for an id that is not in the vocabulary.
        """
        ids = as_lists(token_ids)
        if isinstance(ids, int):
            ids = [ids]
        several = bool(len(ids)) and not isinstance(as_lists(ids[0]), int)
        made = [
            self.text_of(
                as_lists(some),
                skip_special=skip_special_tokens,
                clean_up=clean_up_tokenization_spaces,
            )
            for some in (ids if several else [ids])
        ]
        return made if several else made[0]

    batch_decode = decode

    def text_of(
        self, ids: Sequence[int], *, skip_special: bool = False, clean_up: bool | None = None
    ) -> str:
        """Return the text of these ids. Raises InputError for one that is not in the vocabulary.

        ``clean_up`` drops blanks before punctuation and in contractions. None is what the folder
        says, as in transformers; without a word there, blanks go only where no token comes between.
        BPE keeps the blanks of a text, so none is dropped.
        """
        self._check_ids(ids)
        if clean_up is False and hasattr(self.core.decoder, "cleanup"):
            from tokenizers import decoders

            plain = decoders.WordPiece(self.core.decoder.prefix, cleanup=False)
            return plain.decode(self.tokens_of(ids, skip_special=skip_special))
        text = self.core.decode(ids, skip_special)
        if type(self.core.model).__name__ == "BPE":
            return text
        return _cleaned(text) if clean_up or (clean_up is None and self.clean_up) else text

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """Return the token of an id, or those of a list or an array of ids.

        Raises InputError for an id that is not in the vocabulary.
        """
        plain = as_lists(ids)
        if isinstance(plain, int):
            return self.tokens_of([plain])[0]
        return self.tokens_of([int(index) for index in plain], skip_special=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | list[int]:
        """Return the id of a token, or those of several; an unknown one has the id of [UNK]."""
        if isinstance(tokens, str):
            return self.ids_of([tokens])[0][0]
        return self.ids_of(tokens)[0]

    def tokens_of(self, ids: Sequence[int], *, skip_special: bool = False) -> list[str]:
        """Return the token of each id. Raises InputError for one that is not in the vocabulary."""
        self._check_ids(ids)
        special = self.core.get_added_tokens_decoder() if skip_special else {}
        kept = (index for index in ids if not (index in special and special[index].special))
        return [self.core.id_to_token(index) or "" for index in kept]

    def ids_of(self, tokens: Iterable[str]) -> tuple[list[int], list[str]]:
        """Return the id of each token, and the tokens that are unknown and became [UNK].

        Raises InputError for an unknown token when there is no [UNK], as in some BPE.
        """
        found = [(token, self.core.token_to_id(token)) for token in tokens]
        unknown = [token for token, index in found if index is None]
        unk = self.special_ids().get(self.roles["unk_token"], -1)
        if unknown and unk < 0:
            raise InputError(
                f"{unknown[0]!r} is not in the vocabulary, which has no token for what is unknown",
                "bertcli tokenize --tokens shows the tokens of a text",
            )
        return [unk if index is None else index for _, index in found], unknown

    def build_inputs_with_special_tokens(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None
    ) -> list[int]:
        """Return [CLS] A [SEP], or [CLS] A [SEP] B [SEP], of ids without special tokens."""
        frame = self._frame(token_ids_1)
        return [*frame.before, *token_ids_0, *frame.between, *(token_ids_1 or ()), *frame.after]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None
    ) -> list[int]:
        """Return the token types of what `build_inputs_with_special_tokens` makes."""
        types = self._frame(token_ids_1).types[1:-1]
        return [
            kind
            for kind, size in zip(types, self._sizes(token_ids_0, token_ids_1), strict=True)
            for _ in range(size)
        ]

    def get_special_tokens_mask(
        self,
        token_ids_0: Sequence[int],
        token_ids_1: Sequence[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """Return 1 for each special token of what `build_inputs_with_special_tokens` makes.

        With ``already_has_special_tokens`` it is that of ``token_ids_0`` as they are. Raises
        InputError when there is a second list with it.
        """
        if already_has_special_tokens:
            if token_ids_1 is not None:
                raise InputError("ids that have special tokens already are one list, not two")
            special = {*self.all_special_ids}
            return [int(index in special) for index in token_ids_0]
        sizes = self._sizes(token_ids_0, token_ids_1)
        return [1 - at % 2 for at, size in enumerate(sizes) for _ in range(size)]

    def add_tokens(
        self,
        new_tokens: str | AddedToken | Sequence[str | AddedToken],
        special_tokens: bool = False,
    ) -> int:
        """Add tokens to the end of the vocabulary, and return how many are new.

        A model that shall read them needs as many embeddings more.
        """
        several = isinstance(new_tokens, list | tuple)
        tokens: Any = list(new_tokens) if several else [new_tokens]  # type: ignore[arg-type]
        add = self.core.add_special_tokens if special_tokens else self.core.add_tokens
        return add(tokens)

    @contextmanager
    def parsing(self, split: bool | None) -> Iterator[None]:
        """Read special tokens in texts as such, or split them as texts, while the block runs."""
        was = self.core.encode_special_tokens
        if split is not None:
            self.core.encode_special_tokens = split
        try:
            yield
        finally:
            self.core.encode_special_tokens = was

    def _check_ids(self, ids: Sequence[int]) -> None:
        for index in set(ids):
            known = 0 <= index < 2**32 and self.core.id_to_token(index) is not None
            if not known:
                raise InputError(
                    f"id {index} is not in the vocabulary of {len(self)} tokens",
                    "if the ids are of another model, give it with --model",
                )

    def _frame(self, second: Sequence[int] | None) -> Frame:
        frame = frame_of(self.core, pair=second is not None, special=True)
        if frame is None:
            raise ModelError("this tokenizer does not put special tokens around two texts in order")
        return frame

    def _sizes(self, first: Sequence[int], second: Sequence[int] | None) -> list[int]:
        """Return how many ids there are before, in, between and after the texts."""
        frame = self._frame(second)
        parts = (frame.before, first, frame.between, second or (), frame.after)
        return list(map(len, parts))
