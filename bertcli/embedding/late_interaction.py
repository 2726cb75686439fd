"""Late-interaction models (ColBERT), which match token vectors: their settings and their files.

    config.json, artifact.metadata           ColBERT itself: architecture HF_ColBERT
    config_sentence_transformers.json, 1_Dense     PyLate: model_type ColBERT, or none
    modules.json with MultiVectorMask        sentence-transformers 6.2: MultiVectorEncoder
    colbert_linear.pt                        BGE-M3

Queries and documents have separate prompts, lengths and prefix tokens. No torch is needed. Source:
sentence-transformers 6.2, MultiVectorEncoder, MultiVectorMask and Transformer.preprocess.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.embedding.options import COLBERT, CONFIG, is_pylate
from bertcli.embedding.sentence_modules import Dense, VectorModule, linear_in, read_chain
from bertcli.errors import ModelError
from bertcli.io.typed_json import JsonObject, is_regular, is_text
from bertcli.model_folder.files import WeightFiles, transformer_path
from bertcli.model_folder.folder import ModelFolder
from bertcli.tokenizing.batch import Column, Encoded, pad_row
from bertcli.tokenizing.tokenizer import Tokenizer

METADATA, BGE = "artifact.metadata", "colbert_linear.pt"
LENGTH = 32  # default number of tokens of a query
QUERY, DOCUMENT = ROLES = "query", "document"


@dataclass(frozen=True)
class LateInteraction:
    """The settings of a late-interaction model for one role: queries or documents."""

    role: str
    prompts: Mapping[str, str]  # text before each text, by role
    prefix: tuple[str, int] | None  # token inserted after [CLS], and its id
    length: int | None  # maximum tokens of a text
    filled: int  # tokens to which a shorter text is padded (query expansion)
    filler: tuple[str, int] | None  # the padding token of queries, and its id
    attended: bool  # True: other tokens attend to the padding
    skipped: frozenset[int]  # ids of tokens that are not matched
    first: bool  # True: the first token is matched
    modules: tuple[VectorModule, ...]  # applied to the token vectors
    normalize: bool

    @property
    def hides_filling(self) -> bool:
        """True if texts are padded with tokens to which no other token attends."""
        return self.filler is not None and not self.attended

    def with_prefix(self, item: Encoded, *, special: bool) -> Encoded:
        """Return a text with the prefix token of its role inserted, after [CLS] if ``special``.

        Like a special token, the prefix has no sequence id.
        """
        if self.prefix is None:
            return item
        position = int(special)
        token, index = self.prefix
        values = {"input_ids": index, "tokens": token}
        values |= {"offset_mapping": (0, 0), "sequence_ids": None}
        columns: dict[str, Column] = {
            name: [*column[:position], values.get(name, 0), *column[position:]]
            for name, column in item.columns.items()
        }
        return item._replace(columns=columns)

    def filled_up(self, item: Encoded) -> Encoded:
        """Return a text padded to ``filled`` tokens."""
        if self.filler is None:
            return item
        return pad_row(item, self.filled, "right", *self.filler)

    def matched(self, item: Encoded, vectors: np.ndarray) -> tuple[Encoded, np.ndarray]:
        """Return the tokens of a text that are matched, and their vectors."""
        ids = item.columns["input_ids"]
        places = [
            at for at, index in enumerate(ids) if index not in self.skipped and (at or self.first)
        ]
        columns: dict[str, Column] = {
            name: [column[at] for at in places] for name, column in item.columns.items()
        }
        return item._replace(columns=columns), vectors[places]

    @property
    def described(self) -> dict[str, Any]:
        """The settings that determine the vectors, for manifests."""
        names = ("role", "prefix", "filled", "attended", "first")
        return {name: getattr(self, name) for name in names} | {"skipped": sorted(self.skipped)}


# --- reading ---


@dataclass(frozen=True)
class LateFiles:
    """The settings in the files of a late-interaction model, for both roles."""

    modules: tuple[VectorModule, ...]
    prefixes: Mapping[str, str] = field(default_factory=dict)  # prefix tokens, by role
    prompts: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, int | None] = field(default_factory=dict)
    filled: int = 0  # tokens to which queries are padded; 0: no padding
    fixed: bool = True  # True: longer queries are truncated to `filled` tokens
    filler: str | None = None  # padding token; None: the mask token
    attended: bool = False
    skipped: Sequence[str] = ()
    skipping: Sequence[str] = (DOCUMENT,)  # roles in which `skipped` tokens are not matched
    normalize: bool = True
    first: bool = True


def read_late(
    folder: ModelFolder, tokenizer: Tokenizer, role: str | None
) -> LateInteraction | None:
    """Return the settings of a late-interaction model; None for any other model.

    A ``role`` other than "query" means documents. Raises ModelError for broken files and
    unsupported settings.
    """
    files = _files(folder)
    role = QUERY if role == QUERY else DOCUMENT
    if files is None:
        return None
    id_of = tokenizer.core.token_to_id
    name = files.filler or tokenizer.roles.get("mask_token") or ""
    index = id_of(name)
    if files.filled and index is None:
        raise ModelError(f"{folder}: the vocabulary has no token {name!r} to fill queries up with")
    prompts = {}
    prefixes = {}
    for kind in ROLES:
        prefix = files.prefixes.get(kind) or ""
        prompt = (files.prompts.get(kind) or "").removeprefix(prefix)
        for token in (prefix, *prefix.split(None, 1)[:1]):  # PyLate writes "[Q] ", with a space
            if token and (number := id_of(token)) is not None:
                prefixes[kind], prefix = (token, number), prefix[len(token) :].lstrip()
                break
        prompts[kind] = prefix + prompt
    filled = files.filled if role == QUERY else 0
    length = files.lengths.get(role)
    if filled:
        length = filled if files.fixed else length and max(length, filled)
    words = files.skipped if role in files.skipping else ()
    ids = {id_of(word) for word in words} - {id_of(tokenizer.roles.get("unk_token") or "")}
    return LateInteraction(
        role,
        prompts,
        prefixes.get(role),
        length,
        filled,
        (name, index) if files.filled and index is not None else None,
        files.attended,
        frozenset(index for index in ids if index is not None),
        files.first,
        files.modules,
        files.normalize,
    )


def _files(folder: ModelFolder) -> LateFiles | None:
    """Return the settings in the files; None if the model has no late interaction."""
    modules = folder.modules
    settings = folder.json_object(CONFIG)
    places = {module.class_name.rpartition(".")[2]: module.path for module in modules}
    if "MultiVectorMask" in places:
        return _of_multi_vector(folder, settings, places)
    if is_pylate(settings, [module.class_name for module in modules]):
        return replace(
            _of_modules(folder, settings, settings),
            prefixes={role: settings.text(f"{role}_prefix") or "" for role in ROLES},
            filled=0
            if settings.switch("do_query_expansion") is False
            else settings.whole("query_length", 1) or LENGTH,
            attended=bool(settings.switch("attend_to_expansion_tokens")),
            skipped=_words(settings, "skiplist_words", string.punctuation),
        )
    if is_regular(folder / BGE):
        return LateFiles((linear(folder / BGE),), first=False)
    if modules or COLBERT not in folder.config.architectures:
        return None
    raw = folder.json_object(METADATA)
    return LateFiles(
        (linear_in(folder.weights, folder, "linear."),),
        {
            QUERY: raw.text("query_token_id") or "[unused0]",
            DOCUMENT: raw.text("doc_token_id") or "[unused1]",
        },
        lengths={DOCUMENT: raw.whole("doc_maxlen", 1)},
        filled=raw.whole("query_maxlen", 1) or LENGTH,
        attended=bool(raw.switch("attend_to_mask_tokens")),
        skipped=() if raw.switch("mask_punctuation") is False else string.punctuation,
    )


def _of_multi_vector(
    folder: ModelFolder, settings: JsonObject, places: Mapping[str, str]
) -> LateFiles:
    inner = folder.subfolder(transformer_path(folder.modules)).sentence_settings
    expansion = inner.object("query_expansion")
    mask = folder.json_object(f"{places['MultiVectorMask']}/config.json")
    if mask.get("keep_only_token_ids"):
        raise ModelError(f"{mask.source}: unsupported keep_only_token_ids")
    return replace(
        _of_modules(folder, settings, inner),
        filled=(expansion.whole("length", 1) or LENGTH) if expansion else 0,
        fixed=expansion.text("strategy") != "min",
        filler=expansion.text("token"),
        attended=bool(expansion.switch("attend")),
        skipped=_words(mask, "skiplist_words", ()),
        skipping=_words(mask, "skiplist_tasks", (DOCUMENT,)),
        normalize="Normalize" in places,
    )


def _of_modules(folder: ModelFolder, settings: JsonObject, limits: JsonObject) -> LateFiles:
    """Return the settings shared by all folders with modules.json: Dense layers, prompts, lengths.

    The layers apply to token vectors. Raises ModelError for an unsupported module.
    """
    layers = []
    prompts = settings.object("prompts")
    others = ("Transformer", "MLMTransformer", "MultiVectorMask", "Normalize", "Dropout")
    for module in folder.modules:
        kind = module.class_name.rpartition(".")[2]
        if kind == "Dense":
            layers.append(module._replace(class_name=kind))
        elif kind not in others:
            raise ModelError(f"{folder / 'modules.json'}: unsupported module {module.class_name}")
    return LateFiles(
        read_chain(folder, layers),
        prompts={role: prompts.text(role) or "" for role in ROLES},
        lengths={role: limits.whole(f"{role}_length", 1) for role in ROLES},
    )


def _words(raw: JsonObject, name: str, default: Sequence[str]) -> Sequence[str]:
    """Return a sequence of words: the list under this key, the single string, or the default."""
    word = raw[name] if is_text(raw.get(name)) else None
    words = [word] if word else raw.texts(name)
    return default if words is None else words


def linear(path: Path) -> Dense:
    """Read the linear layer in a file pickled by torch, without executing any code in it."""
    return linear_in(WeightFiles("pytorch", (path,)), path)
