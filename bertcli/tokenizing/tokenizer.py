"""The tokenizer of a model: text to tokens and back.

    tokenizer = Tokenizer.load("bert-base-uncased")
    tokenizer('I love NLP!')["input_ids"]   # [101, 1045, 2293, 17953, 2361, 999, 102]
    tokenizer.decode([101, 1045, 2293, 17953, 2361, 999, 102])   # '[CLS] i love nlp! [SEP]'
    tokenizer.encode_records([Record('I love NLP!')], Layout())   # as the commands do it
    tokenizer.convert_tokens_to_ids(["love", "##p"])              # [2293, 2361]
    tokenizer.build_inputs_with_special_tokens([2293], [2361])    # [101, 2293, 102, 2361, 102]
    tokenizer.create_token_type_ids_from_sequences([2293], [2361])  # [0, 0, 0, 1, 1]

Methods have the names and semantics of transformers. The tokenizers library splits texts into
tokens. Truncation and padding settings in tokenizer.json are overridden: this package truncates,
pads and builds windows itself, and counts the dropped tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError, ModelError, UsageError, counted, option
from bertcli.io.streams import raise_error
from bertcli.io.typed_json import NOTHING, JsonObject, write_json
from bertcli.model_folder.find import find_model
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.model_folder.tokenizer_classes import AS_IT_IS, ROLES, with_prefix_space
from bertcli.model_folder.tokenizer_files import (
    SIDES,
    LoadedTokenizer,
    load_tokenizer,
    load_tokenizer_json,
    sequence_limit,
)
from bertcli.records.batch import RecordBatch
from bertcli.records.record import Record
from bertcli.tokenizing.batch import Encoded, Layout, TokenBatch, as_lists
from bertcli.tokenizing.encode_block import Skip, encode_block, pad_rows
from bertcli.tokenizing.encoding import FIELDS

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Core
    from typing_extensions import Self

    from bertcli.tokenizing.call import BatchEncoding, Texts
    from bertcli.tokenizing.ragged import WordPieceEngine

TOKENIZER_FILE = "tokenizer.json"
SAVED_SETTINGS = (  # of tokenizer_config.json
    "tokenizer_class",
    "bos_token",
    "eos_token",
    "add_prefix_space",
    "trim_offsets",
    "do_lower_case",
    "keep_accents",
    "split_by_punct",
    "model_input_names",
    "clean_up_tokenization_spaces",
)
# Roles of special tokens, in transformers' order.
ROLE_ORDER = ("bos_token", "eos_token", *ROLES)
# Tokenizer classes without bos_token and eos_token unless the folder defines them.
CLASSES_WITHOUT_ENDS = ("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer", AS_IT_IS.name)
NORMALIZER_FIELDS = {  # setting -> its name in BERT's normalizer
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "clean_text": "clean_text",
}
# What clean_up_tokenization_spaces replaces in transformers, in order.
CLEANED_UP = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class Tokenizer:
    """The tokenizer of one model: texts to tokens and back.

    ``limit`` is the model's maximum sequence length; None without one.
    """

    def __init__(self, loaded: LoadedTokenizer, settings: JsonObject, limit: int | None) -> None:
        self.core, self.kind, self.roles, self.warnings = loaded
        self.settings = settings
        self.limit = limit
        self.truncation_side = settings.choice("truncation_side", SIDES) or "right"
        self.padding_side = settings.choice("padding_side", SIDES) or "right"
        self.expected_characters = 0  # estimate of what is still to come
        self.reads_types = True  # True if the model takes token type ids
        self.clean_up: bool | None = settings.switch("clean_up_tokenization_spaces")
        self.core.no_truncation()
        self.core.no_padding()

    @classmethod
    def load(
        cls,
        name: ModelFolder | str | Path = DEFAULT_MODEL,
        *,
        parse_special: bool = True,
        revision: str | None = None,
        offline: bool = False,
    ) -> Self:
        """Return the tokenizer of a model, given by a name as in `find_model` or by its folder.

        The folder contains a tokenizer.json, or else a vocab.txt. A sentence model may keep them in
        the subfolder of a module that modules.json lists. With ``parse_special``, a literal "[SEP]"
        in a text becomes that special token. Raises ModelError if a file is missing or broken, or a
        special token is missing.
        """
        if isinstance(name, str):
            name = find_model(name, revision=revision, offline=offline)
        model = ModelFolder.open(name)
        if not model.path.is_dir():
            raise ModelError(f"{model}: folder not found")
        folder = model.encoder
        if model.is_static:
            loaded = load_tokenizer_json(folder)
            settings = NOTHING
            limit = None
            truncation = loaded.core.truncation
            if truncation and not model.is_model2vec:  # StaticEmbedding follows its tokenizer.json
                settings = JsonObject({"truncation_side": truncation["direction"].lower()}, "")
                limit = truncation["max_length"]
            tokenizer = cls(loaded, settings, limit)
        else:
            limit = sequence_limit(folder)
            tokenizer = cls(load_tokenizer(folder), folder.tokenizer_settings, limit)
        tokenizer.core.encode_special_tokens = not parse_special
        special = tokenizer.core.num_special_tokens_to_add(False)
        if tokenizer.limit is not None and tokenizer.limit < special:
            raise ModelError(
                f"{folder}: a limit of {counted(tokenizer.limit, 'token')} leaves no room for the "
                f"{special} special tokens",
                "correct model_max_length, max_seq_length or max_position_embeddings",
            )
        return tokenizer

    from_pretrained = load

    @property
    def model_max_length(self) -> int:
        """The number of tokens that a text is truncated to, or 10^30 without a limit."""
        return int(1e30) if self.limit is None else self.limit

    @cached_property
    def added_special(self) -> dict[int, str]:
        """The special tokens that were added to the vocabulary, by id."""
        added = self.core.get_added_tokens_decoder().items()
        return {index: token.content for index, token in added if token.special}

    def count_literals(self, records: Sequence[Record]) -> int:
        """Return how many literal special tokens in the texts are parsed as special tokens."""
        if self.core.encode_special_tokens:
            return 0
        names = sorted(self.added_special.values(), key=len, reverse=True)
        literal = re.compile("|".join(map(re.escape, names)) or "(?!)")
        # One search of all texts takes half the time of a search of each short text.
        return len(literal.findall("\0".join(RecordBatch.of(records).strings)))

    @cached_property
    def engine(self) -> WordPieceEngine:
        """The encoder of many texts at once."""
        from bertcli.tokenizing.ragged import WordPieceEngine

        return WordPieceEngine(self.core, self.expected_characters)

    @cached_property
    def words_core(self) -> Core:
        """The `tokenizers` core for texts that are split into words."""
        return with_prefix_space(self.core)

    def __len__(self) -> int:
        """Return the vocabulary size, including added tokens."""
        return self.core.get_vocab_size()

    def refuse_beyond(self, rows: int, folder: ModelFolder) -> None:
        """Raise ModelError for a token id beyond the ``rows`` embeddings of the folder's model."""
        if len(self) <= rows and all(map(self.core.id_to_token, range(len(self)))):
            return  # ids are contiguous: checking each is four times slower
        vocabulary = self.core.get_vocab().items()
        beyond = [(index, token) for token, index in vocabulary if index >= rows]
        if beyond:
            index, token = min(beyond)
            raise ModelError(
                f"{folder}: token {token!r} has id {index}, but the model has {rows} word "
                "embeddings",
                "use the tokenizer that belongs to this model, or resize its embeddings",
            )

    def special_ids(self) -> dict[str, int]:
        """Return special token -> id, in the order [UNK], [SEP], [PAD], [CLS], [MASK]."""
        ids = {token: self.core.token_to_id(token) for token in self.roles.values()}
        return {token: index for token, index in ids.items() if index is not None}

    @cached_property
    def model_inputs(self) -> list[str]:
        """The columns that a call from Python returns by default."""
        names = self.settings.texts("model_input_names")
        types = ["token_type_ids"] if self.kind.token_types else []
        return ["input_ids", *types, "attention_mask"] if names is None else names

    @property
    def padding_id(self) -> int:
        """The id of the padding token. Raises ModelError for a vocabulary without one."""
        index = self.core.token_to_id(self.roles["pad_token"])
        if index is None:
            raise ModelError(
                "this tokenizer has no padding token", "name a token as pad_token in its folder"
            )
        return index

    def max_length(self, layout: Layout) -> int:
        """Return the length to truncate or pad to: the requested one, else the model's limit."""
        if layout.max_length is not None:
            return layout.max_length
        if self.limit is None:
            raise UsageError("this tokenizer has no length limit", f"give {option('max_length')}")
        return self.limit

    def padded_length(self, layout: Layout, longest: int) -> int:
        """Return the padded length of texts whose longest has ``longest`` tokens."""
        length = longest if layout.padding == "longest" else self.max_length(layout)
        step = layout.pad_to_multiple_of or 1
        return -(-length // step) * step

    def truncated_length(self, layout: Layout) -> int | None:
        """Return the length to truncate to; None without truncation.

        Raises UsageError for a length that leaves no room beside special tokens, or a stride that
        does not fit.
        """
        if layout.truncation == "do_not_truncate":
            return None
        length = self.max_length(layout)
        room = self.room(length, layout, pair=False)
        if layout.stride and layout.stride >= room:
            raise UsageError(
                f"{option('stride', layout.stride)} must be less than the {room} tokens of a "
                "window",
                f"{option('max_length', length)} without special tokens is {room}",
            )
        return length

    def room(self, length: int, layout: Layout, *, pair: bool) -> int:
        """Return how many tokens of a text or a pair fit beside the special tokens.

        Raises UsageError if the special tokens alone exceed ``length``.
        """
        special = self.core.num_special_tokens_to_add(pair) if layout.special_tokens else 0
        if length < special:
            raise UsageError(
                f"{option('max_length', length)} leaves no room for the {special} special tokens",
                f"increase it, or use {option('special_tokens', False)}",
            )
        return length - special

    def __getattr__(self, name: str) -> Any:
        """Return cls_token, cls_token_id, sep_token and so on; None for a missing token."""
        role = name.removesuffix("_id")
        if role not in ROLE_ORDER:
            raise AttributeError(f"a tokenizer has no attribute {name!r}")
        token = self.roles.get(role) or self._end_token(role)
        if token is None:
            return None
        token_id = self.core.token_to_id(token)
        if token_id is None and self.kind.roles is None:  # a default that this vocabulary lacks
            return None
        return token if role == name else token_id

    def _end_token(self, role: str) -> str | None:
        """Return bos_token or eos_token: the folder's, else the tokenizer's [CLS] or [SEP]."""
        token = self.settings.get(role)
        if isinstance(token, Mapping):  # an added token with settings
            token = token.get("content")
        if token is not None or self.kind.name in CLASSES_WITHOUT_ENDS:
            return token
        return self.roles["cls_token" if role == "bos_token" else "sep_token"]

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens by role: cls_token and so on."""
        tokens = {role: getattr(self, role) for role in ROLE_ORDER}
        known = {role: token for role, token in tokens.items() if token is not None}
        return {
            role: token for role, token in known.items() if self.core.token_to_id(token) is not None
        }

    @property
    def model_input_names(self) -> list[str]:
        """The columns that a call from Python returns by default."""
        return list(self.model_inputs)

    is_fast = True  # tokens are split by the tokenizers library

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return the number of special tokens around a text, or around a pair."""
        return self.core.num_special_tokens_to_add(pair)

    @property
    def max_len_single_sentence(self) -> int:
        """The maximum number of tokens of a text beside the special tokens."""
        return self.model_max_length - self.num_special_tokens_to_add()

    @property
    def max_len_sentences_pair(self) -> int:
        """The maximum number of tokens of a pair beside the special tokens."""
        return self.model_max_length - self.num_special_tokens_to_add(pair=True)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers can load as well.

        Each file is written atomically. Raises OutputError if the folder is not writable.
        """
        from bertcli.io.publish import saving_files

        ids = self.special_ids()
        normalizer = self.core.normalizer
        roles = {role: token for role, token in self.roles.items() if token in ids}
        without_role = [
            token for token in self.added_special.values() if token not in roles.values()
        ]
        normalizer_settings = {
            name: getattr(normalizer, field)
            for name, field in NORMALIZER_FIELDS.items()
            if hasattr(normalizer, field)
        }
        settings = {
            "tokenizer_class": self.kind.name,
            **{key: self.settings[key] for key in SAVED_SETTINGS if key in self.settings},
            **roles,
            "extra_special_tokens": without_role,
            **normalizer_settings,
            "model_max_length": self.model_max_length,
            "padding_side": self.padding_side,
            "truncation_side": self.truncation_side,
        }
        with saving_files(Path(folder), last=TOKENIZER_FILE) as scratch:
            (scratch / TOKENIZER_FILE).write_text(self.core.to_str(pretty=True), encoding="utf-8")
            write_json(scratch / "tokenizer_config.json", settings)

    save_pretrained = save

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens, including added ones."""
        return list(dict.fromkeys((*self.special_ids().values(), *self.added_special)))

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, including added ones."""
        return self.convert_ids_to_tokens(self.all_special_ids)

    @property
    def vocab_size(self) -> int:
        """The number of tokens without added ones (`len` includes them)."""
        return self.core.get_vocab_size(with_added_tokens=False)

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id."""
        return self.core.get_vocab()

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> Any:
        """Return the text of an id or of a sequence of ids, or a list of texts for a batch.

        ``clean_up_tokenization_spaces`` removes blanks before punctuation and in contractions. None
        means the folder's setting, as in transformers; without a setting, only where the pattern
        does not span several tokens. BPE keeps the blanks of a text, so none is removed.

        Raises InputError for an id that is not in the vocabulary.
        """
        ids = as_lists(token_ids)
        clean_up = clean_up_tokenization_spaces
        ids = [ids] if isinstance(ids, int) else ids
        if len(ids) and not isinstance(as_lists(ids[0]), int):
            return [self.decode(row, skip_special_tokens, clean_up) for row in ids]
        self._check_ids(ids)
        if clean_up is False and hasattr(self.core.decoder, "cleanup"):
            from tokenizers import decoders

            plain = decoders.WordPiece(self.core.decoder.prefix, cleanup=False)
            return plain.decode(self.convert_ids_to_tokens(ids, skip_special_tokens))
        text = self.core.decode(ids, skip_special_tokens)
        if type(self.core.model).__name__ == "BPE":
            return text
        for blanks in CLEANED_UP if clean_up or (clean_up is None and self.clean_up) else ():
            text = text.replace(blanks, blanks.strip())
        return text

    batch_decode = decode

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the token of an id, or the tokens of a list or array of ids.

        Raises InputError for an id that is not in the vocabulary.
        """
        plain = as_lists(ids)
        if isinstance(plain, int):
            return self.convert_ids_to_tokens([plain])[0]
        self._check_ids(plain)
        skipped = self.added_special if skip_special_tokens else ()
        return [self.core.id_to_token(index) or "" for index in plain if index not in skipped]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | list[int]:
        """Return the id of a token, or a list of ids; unknown tokens have the id of [UNK]."""
        if isinstance(tokens, str):
            return self.ids_of([tokens])[0][0]
        return self.ids_of(tokens)[0]

    def ids_of(self, tokens: Iterable[str]) -> tuple[list[int], list[str]]:
        """Return the id of each token, and the unknown tokens that became [UNK].

        Raises InputError for an unknown token if the vocabulary has no [UNK] (some BPE models).
        """
        pairs = [(token, self.core.token_to_id(token)) for token in tokens]
        unknown = [token for token, index in pairs if index is None]
        unk = self.special_ids().get(self.roles["unk_token"], -1)
        if unknown and unk < 0:
            raise InputError(
                f"{unknown[0]!r} is not in the vocabulary, which has no token for what is unknown",
                "bertcli tokenize --tokens shows the tokens of a text",
            )
        return [unk if index is None else index for _, index in pairs], unknown

    def build_inputs_with_special_tokens(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None
    ) -> list[int]:
        """Return [CLS] A [SEP], or [CLS] A [SEP] B [SEP], for ids without special tokens."""
        parts = self._parts_with_types(token_ids_0, token_ids_1)
        return [index for _, ids in parts for index in ids]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: Sequence[int], token_ids_1: Sequence[int] | None = None
    ) -> list[int]:
        """Return the token type ids for the output of `build_inputs_with_special_tokens`."""
        parts = self._parts_with_types(token_ids_0, token_ids_1)
        return [token_type for token_type, ids in parts for _ in ids]

    def get_special_tokens_mask(
        self,
        token_ids_0: Sequence[int],
        token_ids_1: Sequence[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """Return a mask of the output of `build_inputs_with_special_tokens`: 1 for special tokens.

        With ``already_has_special_tokens``, it is the mask of ``token_ids_0`` itself. Raises
        InputError if a second list is given as well.
        """
        if already_has_special_tokens:
            if token_ids_1 is not None:
                raise InputError("ids that have special tokens already are one list, not two")
            special = {*self.all_special_ids}
            return [int(index in special) for index in token_ids_0]
        parts = self._parts_with_types(token_ids_0, token_ids_1)
        return [1 - number % 2 for number, (_, ids) in enumerate(parts) for _ in ids]

    def add_tokens(
        self,
        new_tokens: str | AddedToken | Sequence[str | AddedToken],
        special_tokens: bool = False,
    ) -> int:
        """Append tokens to the vocabulary, and return how many are new.

        The model needs as many additional embeddings to read them.
        """
        several = isinstance(new_tokens, list | tuple)
        tokens: Any = list(new_tokens) if several else [new_tokens]  # type: ignore[arg-type]
        for name in ("added_special", "engine", "words_core"):  # cached, derived from the core
            self.__dict__.pop(name, None)
        add = self.core.add_special_tokens if special_tokens else self.core.add_tokens
        return add(tokens)

    def add_special_tokens(
        self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True
    ) -> int:
        """Add special tokens by role, and return how many are new to the vocabulary.

        Keys are cls_token and so on, bos_token, eos_token, or additional_special_tokens with a
        list. The model needs as many additional embeddings to read the new tokens. Raises
        UsageError for another key.
        """
        tokens: list[str | AddedToken] = []
        roles = dict(self.roles)
        for key, value in special_tokens_dict.items():
            if key in ROLE_ORDER:
                roles[key] = getattr(value, "content", value)
                tokens.append(value)
            elif key in ("additional_special_tokens", "extra_special_tokens"):
                tokens += value
            else:
                known = ", ".join((*ROLE_ORDER, "additional_special_tokens"))
                raise UsageError(f"unknown special token {key!r}", f"one of {known}")
        added = self.add_tokens(tokens, special_tokens=True)
        self.roles = roles
        return added

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, with word pieces joined."""
        if self.core.decoder is None:
            return " ".join(tokens)
        return self.core.decoder.decode([*tokens])

    def get_added_vocab(self) -> dict[str, int]:
        """Return token -> id of the added tokens, including special ones."""
        added = self.core.get_added_tokens_decoder().items()
        return {token.content: index for index, token in sorted(added)}

    def _check_ids(self, ids: Sequence[int]) -> None:
        for index in set(ids):
            if not 0 <= index < 2**32 or self.core.id_to_token(index) is None:
                raise InputError(
                    f"id {index} is not in the vocabulary of {len(self)} tokens",
                    f"if the ids are of another model, give it with {option('model')}",
                )

    def _parts_with_types(
        self, first: Sequence[int], second: Sequence[int] | None
    ) -> list[tuple[int, Sequence[int]]]:
        """Return the ids of special tokens and texts in turn, each part with its token type."""
        from bertcli.tokenizing.special_tokens import special_tokens_around  # rarely needed

        special_tokens = special_tokens_around(self.core, pair=second is not None)
        if special_tokens is None:
            raise ModelError("this tokenizer does not put special tokens around two texts in order")
        leading, *following = special_tokens.special
        parts: list[Sequence[int]] = [leading]
        for text, special in zip((first, second or ()), following, strict=False):
            parts += [text, special]
        return [*zip(special_tokens.types, parts, strict=True)]

    def __call__(
        self, text: Texts, text_pair: Texts | None = None, **options: Any
    ) -> BatchEncoding:
        """Return the output of a transformers tokenizer call, as lists that ``json.dumps`` accepts.

        ``options`` are the fields of `Call`, named as in transformers. The model's limit for
        truncation and padding takes all files of the folder into account: 256 for all-MiniLM-L6-v2.
        """
        from bertcli.tokenizing.call import Call

        call = Call.of(options)
        records, batched = call.records(text, text_pair)
        layout = call.layout(self.limit, self.model_inputs)

        def encode(columns: tuple[str, ...]) -> TokenBatch:
            with self._splitting_special_tokens(call.split_special_tokens):
                return self.encode_records(records, replace(layout, columns=columns))

        all_columns = cache(partial(encode, (*FIELDS,)))
        return call.result(encode(layout.columns), layout.columns, all_columns, batched=batched)

    @contextmanager
    def _splitting_special_tokens(self, split: bool | None) -> Iterator[None]:
        """Treat literal special tokens as text if ``split``, meanwhile; None changes nothing."""
        original = self.core.encode_special_tokens
        if split in (None, original):
            yield
            return
        cores = (self.core, self.words_core)
        for core in cores:
            core.encode_special_tokens = split
        try:
            yield
        finally:
            for core in cores:
                core.encode_special_tokens = original

    def encode(self, text: Texts, text_pair: Texts | None = None, **options: Any) -> list[int]:
        """Return the input ids of a call."""
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(self, text: Texts, pair: Texts | None = None, **options: Any) -> list[str]:
        """Return the tokens of a text, by default without special tokens."""
        return self(text, pair, **{"add_special_tokens": False, **options}).tokens()

    def pad(self, encoded_inputs: Any, padding: bool | str = True, **options: Any) -> BatchEncoding:
        """Return encoded inputs (a mapping or a list of mappings), padded as in transformers."""
        from bertcli.tokenizing.call import Call

        call = Call.of({"padding": padding, **options})
        inputs = encoded_inputs
        batched = True
        names = [*inputs] if isinstance(inputs, Mapping) else []
        if names:
            ids = as_lists(inputs["input_ids"])
            batched = not (ids and isinstance(ids[0], int))
            columns = zip(*inputs.values(), strict=True) if batched else [inputs.values()]
            inputs = [dict(zip(inputs, column, strict=True)) for column in columns]
        layout = call.layout(self.limit, self.model_inputs)
        rows = [Encoded(Record(""), {k: as_lists(v) for k, v in row.items()}) for row in inputs]
        if "attention_mask" in layout.columns:
            for row in rows:
                row.columns.setdefault("attention_mask", [1] * row.length)
        columns_of_result = rows[0].columns if rows else names
        return call.result(pad_rows(self, rows, layout), columns_of_result, batched=batched)

    def encode_records(
        self, records: Sequence[Record], layout: Layout, *, skip: Skip = raise_error, first: int = 0
    ) -> TokenBatch:
        """Return the encoded records; with ``layout.overflowing``, one row per window.

        ``first`` is the index of the first record in the run. The error of a record that cannot be
        truncated as requested goes to ``skip`` (default: raise). Many records become arrays if the
        layout fits them.
        """
        return encode_block(self, RecordBatch.of(records), layout, skip, first)
