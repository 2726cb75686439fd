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

from bertcli.embedding.options import COLBERT, SENTENCE_CONFIG, is_pylate
from bertcli.embedding.sentence_modules import Dense, VectorModule, read_linear, read_modules
from bertcli.errors import ModelError
from bertcli.io.typed_json import JsonObject, is_regular, is_text
from bertcli.model_folder.files import WeightFiles, transformer_path
from bertcli.model_folder.folder import ModelFolder
from bertcli.tokenizing.batch import Column, Encoded, pad_row
from bertcli.tokenizing.tokenizer import Tokenizer

METADATA = "artifact.metadata"
BGE_LAYER = "colbert_linear.pt"
QUERY_LENGTH = 32  # default number of tokens of a query
QUERY = "query"
DOCUMENT = "document"
ROLES = (QUERY, DOCUMENT)
MODULES_BESIDE_DENSE = (
    *("Transformer", "MLMTransformer", "MultiVectorMask"),
    *("Normalize", "Dropout"),
)


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

    def with_prefix(self, row: Encoded, *, special: bool) -> Encoded:
        """Return a text with the prefix token of its role inserted, after [CLS] if ``special``.

        Like a special token, the prefix has no sequence id.
        """
        if self.prefix is None:
            return row
        position = int(special)
        token, token_id = self.prefix
        values = {
            "input_ids": token_id,
            "tokens": token,
            "offset_mapping": (0, 0),
            "sequence_ids": None,
        }
        columns: dict[str, Column] = {
            name: [*column[:position], values.get(name, 0), *column[position:]]
            for name, column in row.columns.items()
        }
        return row._replace(columns=columns)

    def fill_up(self, row: Encoded) -> Encoded:
        """Return a text padded to ``filled`` tokens."""
        if self.filler is None:
            return row
        return pad_row(row, self.filled, "right", *self.filler)

    def matched_tokens(self, row: Encoded, vectors: np.ndarray) -> tuple[Encoded, np.ndarray]:
        """Return the tokens of a text that are matched, and their vectors."""
        ids = row.columns["input_ids"]
        positions = [index for index, number in enumerate(ids) if number not in self.skipped]
        if not self.first:
            positions = [position for position in positions if position > 0]
        columns: dict[str, Column] = {
            name: [column[position] for position in positions]
            for name, column in row.columns.items()
        }
        return row._replace(columns=columns), vectors[positions]

    @property
    def manifest_settings(self) -> dict[str, Any]:
        """The settings that determine the vectors, for manifests."""
        names = ("role", "prefix", "filled", "attended", "first")
        return {name: getattr(self, name) for name in names} | {"skipped": sorted(self.skipped)}


# --- reading ---


@dataclass(frozen=True)
class LateInteractionFiles:
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


def read_late_interaction(
    folder: ModelFolder, tokenizer: Tokenizer, role: str | None
) -> LateInteraction | None:
    """Return the settings of a late-interaction model; None for any other model.

    A ``role`` other than "query" means documents. Raises ModelError for broken files and
    unsupported settings.
    """
    role = QUERY if role == QUERY else DOCUMENT
    files = _read_files(folder)
    if files is None:
        return None
    id_of = tokenizer.core.token_to_id
    filler = files.filler or tokenizer.roles.get("mask_token") or ""
    filler_id = id_of(filler)
    if files.filled and filler_id is None:
        raise ModelError(f"{folder}: the vocabulary has no token {filler!r} for query expansion")
    prompts = {}
    prefixes = {}
    for each_role in ROLES:
        prefix = files.prefixes.get(each_role) or ""
        prompt = (files.prompts.get(each_role) or "").removeprefix(prefix)
        for token in (prefix, *prefix.split(None, 1)[:1]):  # PyLate writes "[Q] ", with a space
            token_id = id_of(token)
            if token and token_id is not None:
                prefixes[each_role] = (token, token_id)
                prefix = prefix[len(token) :].lstrip()
                break
        prompts[each_role] = prefix + prompt
    filled = files.filled if role == QUERY else 0
    length = files.lengths.get(role)
    if filled:
        length = filled if files.fixed else length and max(length, filled)
    skipped_words = files.skipped if role in files.skipping else ()
    skipped_ids = {id_of(word) for word in skipped_words}
    skipped_ids -= {id_of(tokenizer.roles.get("unk_token") or "")}
    return LateInteraction(
        role,
        prompts,
        prefix=prefixes.get(role),
        length=length,
        filled=filled,
        filler=(filler, filler_id) if files.filled and filler_id is not None else None,
        attended=files.attended,
        skipped=frozenset(number for number in skipped_ids if number is not None),
        first=files.first,
        modules=files.modules,
        normalize=files.normalize,
    )


def _read_files(folder: ModelFolder) -> LateInteractionFiles | None:
    """Return the settings in the files; None if the model has no late interaction."""
    modules = folder.modules
    settings = folder.json_object(SENTENCE_CONFIG)
    module_paths = {module.class_name.rpartition(".")[2]: module.path for module in modules}
    if "MultiVectorMask" in module_paths:
        return _read_multi_vector(folder, settings, module_paths)
    if is_pylate(settings, [module.class_name for module in modules]):
        return _read_pylate(folder, settings)
    if is_regular(folder / BGE_LAYER):
        return LateInteractionFiles((read_pickled_linear(folder / BGE_LAYER),), first=False)
    if modules or COLBERT not in folder.config.architectures:
        return None
    return _read_colbert(folder)


def _read_colbert(folder: ModelFolder) -> LateInteractionFiles:
    """Return the settings of a folder of ColBERT itself."""
    metadata = folder.json_object(METADATA)
    return LateInteractionFiles(
        (read_linear(folder.weights, folder, "linear."),),
        {
            QUERY: metadata.text("query_token_id") or "[unused0]",
            DOCUMENT: metadata.text("doc_token_id") or "[unused1]",
        },
        lengths={DOCUMENT: metadata.integer("doc_maxlen", 1)},
        filled=metadata.integer("query_maxlen", 1) or QUERY_LENGTH,
        attended=bool(metadata.switch("attend_to_mask_tokens")),
        skipped=() if metadata.switch("mask_punctuation") is False else string.punctuation,
    )


def _read_pylate(folder: ModelFolder, settings: JsonObject) -> LateInteractionFiles:
    """Return the settings of a folder written by PyLate."""
    filled = 0
    if settings.switch("do_query_expansion") is not False:
        filled = settings.integer("query_length", 1) or QUERY_LENGTH
    return replace(
        _read_modules(folder, settings, settings),
        prefixes={role: settings.text(f"{role}_prefix") or "" for role in ROLES},
        filled=filled,
        attended=bool(settings.switch("attend_to_expansion_tokens")),
        skipped=_words(settings, "skiplist_words", string.punctuation),
    )


def _read_multi_vector(
    folder: ModelFolder, settings: JsonObject, module_paths: Mapping[str, str]
) -> LateInteractionFiles:
    """Return the settings of a folder written by MultiVectorEncoder of sentence-transformers."""
    inner = folder.subfolder(transformer_path(folder.modules)).sentence_settings
    expansion = inner.object("query_expansion")
    mask = folder.json_object(f"{module_paths['MultiVectorMask']}/config.json")
    if mask.get("keep_only_token_ids"):
        raise ModelError(f"{mask.source}: unsupported keep_only_token_ids")
    return replace(
        _read_modules(folder, settings, inner),
        filled=(expansion.integer("length", 1) or QUERY_LENGTH) if expansion else 0,
        fixed=expansion.text("strategy") != "min",
        filler=expansion.text("token"),
        attended=bool(expansion.switch("attend")),
        skipped=_words(mask, "skiplist_words", ()),
        skipping=_words(mask, "skiplist_tasks", (DOCUMENT,)),
        normalize="Normalize" in module_paths,
    )


def _read_modules(
    folder: ModelFolder, settings: JsonObject, limits: JsonObject
) -> LateInteractionFiles:
    """Return the settings shared by all folders with modules.json: Dense layers, prompts, lengths.

    The layers apply to token vectors. ``limits`` has the lengths. Raises ModelError for an
    unsupported module.
    """
    layers = []
    prompts = settings.object("prompts")
    for module in folder.modules:
        name = module.class_name.rpartition(".")[2]
        if name == "Dense":
            layers.append(module._replace(class_name=name))
        elif name not in MODULES_BESIDE_DENSE:
            raise ModelError(f"{folder / 'modules.json'}: unsupported module {module.class_name}")
    return LateInteractionFiles(
        read_modules(folder, layers),
        prompts={role: prompts.text(role) or "" for role in ROLES},
        lengths={role: limits.integer(f"{role}_length", 1) for role in ROLES},
    )


def _words(config: JsonObject, name: str, default: Sequence[str]) -> Sequence[str]:
    """Return a sequence of words: the list under this key, the single string, or the default."""
    word = config[name] if is_text(config.get(name)) else None
    words = [word] if word else config.texts(name)
    return default if words is None else words


def read_pickled_linear(path: Path) -> Dense:
    """Read the linear layer in a file pickled by torch, without executing any code in it."""
    return read_linear(WeightFiles("pytorch", (path,)), path)
