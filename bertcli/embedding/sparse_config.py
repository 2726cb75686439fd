"""What the folder of a masked language model, or of a SparseEncoder, says of weights of terms.

    modules.json            Transformer, SpladePooling
    1_SpladePooling/config.json, config_sentence_transformers.json
    router_config.json      other modules for queries, as SparseStaticEmbedding
    idf.json                weights of the terms of queries, beside a masked language model
    sparse_linear.pt        BGE-M3

Nothing here needs torch. Source: sentence-transformers 6.2, SparseEncoder and SpladePooling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bertcli.checkpoints.scan import (
    ROUTER,
    TERM_TABLE,
    TRANSFORMERS,
    SentenceModule,
    read_modules,
    read_routes,
    require_weights,
    transformer_path,
)
from bertcli.checkpoints.stored_tensor import mapped
from bertcli.checkpoints.tensors import read_tensors
from bertcli.embedding.late_interaction import DOCUMENT, QUERY, linear
from bertcli.embedding.options import TERM_POOLINGS, EmbedOptions
from bertcli.embedding.sentence_config import CONFIG, Sentence
from bertcli.embedding.sentence_modules import Dense
from bertcli.embedding.term_weights import OwnTerms, TableTerms, TermMaker, TermPooling
from bertcli.errors import ModelError, UsageError
from bertcli.files.typed_json import is_regular, read_object
from bertcli.tokenizing.model_files import sentence_limit, sentence_settings
from bertcli.tokenizing.tokenizer import Tokenizer

BGE, IDF = "sparse_linear.pt", "idf.json"
SPECIAL = ("cls_token", "sep_token", "bos_token", "eos_token", "pad_token", "unk_token")
LOGARITHMS = {"relu": 1, "log1p_relu": 2}  # by the names of activations
EXAMPLE = "for example naver/splade-cocondenser-ensembledistil"


@dataclass(frozen=True)
class SparseModel:
    """How weights of terms are made: what the user chose, else what the model's files specify."""

    options: EmbedOptions
    terms: TermMaker | None  # None for a table of weights, which needs the tokenizer
    place: str = ""  # of the model, seen from the folder
    routed: bool = False  # whether queries and documents are made in different ways

    @property
    def kind(self) -> str:
        """The class of the model."""
        return self.terms.kind if self.terms else TERM_TABLE

    def sentence(self, folder: Path, sentence: Sentence) -> Sentence:
        """Return what a folder says of sentences, with what it says of the model in this place."""
        if not self.routed:
            return sentence
        inner = sentence_settings(folder / self.place)
        prompts = {QUERY: "", DOCUMENT: "", **sentence.prompts}
        limit = sentence_limit(inner) if self.terms else None
        return replace(sentence, transformer=self.place, max_length=limit, prompts=prompts)

    def maker(self, folder: Path, tokenizer: Tokenizer) -> TermMaker:
        """Return what makes terms of this tokenizer's tokens. ModelError when it cannot."""
        if self.terms is None:
            return TableTerms(term_table(folder / self.place, tokenizer))
        if isinstance(self.terms, OwnTerms):
            names = (tokenizer.roles.get(role) for role in SPECIAL)
            ids = {tokenizer.core.token_to_id(name) for name in names if name}
            left_out = frozenset(index for index in ids if index is not None)
            return replace(self.terms, left_out=left_out)
        return self.terms


def read_sparse(folder: Path, options: EmbedOptions) -> SparseModel:
    """Return how a model makes weights of terms; a bare masked language model takes the maximum.

    Where queries are made in another way than documents, the prompt's name tells them apart. Raises
    ModelError when a file is broken, or the modules make none.
    """
    most = options.top_terms or read_object(folder / CONFIG).whole("max_active_dims", 1)
    options = replace(options, top_terms=most)
    if is_regular(folder / BGE):
        return SparseModel(_only_max(options), OwnTerms(_weighing(folder / BGE)))
    routed, modules = has_routes(folder), read_modules(folder)
    if routed:
        routes = read_routes(folder) or {QUERY: [SentenceModule(TERM_TABLE, "")], DOCUMENT: []}
        name = QUERY if options.prompt_name == QUERY else DOCUMENT
        if name not in routes:
            named = ", ".join(routes)
            raise ModelError(f"{folder / ROUTER}: has no route {name!r}", f"its routes: {named}")
        modules = routes[name]
    if [module.kind for module in modules] == [TERM_TABLE]:
        options = replace(_only_max(options), special_tokens=False)
        return SparseModel(options, None, modules[0].path, routed=True)
    pooling = _pooling(folder, modules)
    if options.pooling != "auto":
        pooling = replace(pooling, how=options.pooling)
    place = transformer_path(modules)
    return SparseModel(replace(options, pooling=pooling.how), pooling, place, routed)


def has_routes(folder: Path) -> bool:
    """Tell whether queries and documents become terms in different ways."""
    return bool(read_routes(folder)) or (not read_modules(folder) and is_regular(folder / IDF))


def _only_max(options: EmbedOptions) -> EmbedOptions:
    if options.pooling == "sum":
        raise UsageError("--pooling sum is not possible: this model takes the maximum")
    return replace(options, pooling="max")


def _weighing(path: Path) -> Dense:
    """Read the layer that gives each token its weight."""
    layer = replace(linear(path), activation="ReLU")
    if layer.width != 1:
        raise ModelError(f"{path}: gives a token {layer.width} weights, not one")
    return layer


def term_table(folder: Path, tokenizer: Tokenizer) -> np.ndarray:
    """Return the weight of each token, [V]: of a module's tensor, or of a file by their names."""
    named = read_object(folder / "config.json").text("path")
    size = len(tokenizer)
    if named is None and not is_regular(folder / IDF):
        tensors = read_tensors(require_weights(folder))
        table = next((np.array(mapped(tensor), np.float32) for tensor in tensors), np.zeros(0))
        if table.ndim != 1 or len(table) < size or not np.isfinite(table).all():
            raise ModelError(f"{folder}: has no weight for each of its {size} tokens")
        return np.asarray(table, np.float32)
    raw = read_object(folder / ((named and Path(named).name) or IDF))
    weights = np.zeros(size, np.float32)
    for token in raw:
        index = tokenizer.core.token_to_id(token)
        if index is not None and index < size:
            weights[index] = raw.number(token) or 0
    return weights


def _pooling(folder: Path, modules: list[SentenceModule]) -> TermPooling:
    if not modules:
        return TermPooling()
    match modules:
        case [SentenceModule(kind=kind), SentenceModule(kind="SpladePooling", path=place)] if (
            kind in TRANSFORMERS
        ):
            path = folder / place / "config.json"
        case _:
            kinds = ", ".join(module.kind for module in modules)
            raise ModelError(
                f"{folder / 'modules.json'}: no weights of terms are made by {kinds}",
                f"leave out --sparse, or give --model a sparse one, {EXAMPLE}",
            )
    raw = read_object(path)
    how = raw.text("pooling_strategy") or "max"
    if how not in TERM_POOLINGS:
        raise ModelError(
            f"{path}: unsupported pooling_strategy {how!r}", f"known: {', '.join(TERM_POOLINGS)}"
        )
    name = raw.text("activation_function") or "relu"
    if name not in LOGARITHMS:
        raise ModelError(
            f"{path}: unsupported activation_function {name!r}", f"known: {', '.join(LOGARITHMS)}"
        )
    return TermPooling(how, LOGARITHMS[name])
