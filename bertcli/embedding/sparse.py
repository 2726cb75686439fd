"""Sparse term weights (SPLADE): one weight per token of the vocabulary, nearly all of them 0.

A masked language model scores all terms (tokens of the vocabulary) at each token of a text. The
weight of a term is log(1 + max(score, 0)), either the maximum ("max") or the sum ("sum") over the
tokens of the text. Letters: `L` tokens of a text, `V` tokens of the vocabulary, `k` terms with a
weight above 0. Terms are float32 arrays [k, 2] of ascending ids and weights; float32 holds ids up
to 2**24 exactly.

Arrays are of torch or of NumPy, as in `pooling`. Files of a model's folder that are read here:

    modules.json            Transformer, SpladePooling
    1_SpladePooling/config.json, config_sentence_transformers.json
    router_config.json      separate modules for queries, such as SparseStaticEmbedding
    idf.json                weights of query terms, beside a masked language model
    sparse_linear.pt        BGE-M3

Source: sentence-transformers 6.2, SparseEncoder and SpladePooling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertcli.embedding.late_interaction import DOCUMENT, QUERY, linear
from bertcli.embedding.options import CONFIG, TERM_POOLINGS, EmbedOptions, Sentence
from bertcli.embedding.pooling import split, widened
from bertcli.embedding.sentence_modules import Dense, arrays_in, described
from bertcli.engines.engine import library_of
from bertcli.errors import ModelError, UsageError, option
from bertcli.io.typed_json import NUMBER, is_regular
from bertcli.model_folder.files import (
    ROUTER,
    TERM_TABLE,
    TRANSFORMER_MODULES,
    SentenceModule,
    transformer_path,
)
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.tokenizer_files import sentence_limit
from bertcli.tokenizing.tokenizer import Tokenizer

ROWS = 64  # tokens per block of scores [ROWS, V]; small because V is large


@dataclass(frozen=True)
class TermPooling:
    """The reduction of packed states to term weights by a masked language model (SPLADE)."""

    how: str = "max"
    logarithms: int = 1  # times that log(1 + x) is applied: 2 in some models of OpenSearch

    table = None
    layers: ClassVar[tuple[Dense, ...]] = ()  # layers after the encoder

    @property
    def described(self) -> dict[str, Any]:
        """The settings that determine the weights, for manifests."""
        return {"logarithms": self.logarithms}

    def terms(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the terms [k, 2] of a text from ``weights``, the result of calling this object."""
        return weights.astype(np.float32)

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> list[Any]:
        """Return the terms [k, 2] of each text: ascending ids and weights.

        Half precision becomes float32.
        """
        return [nonzero(self._pooled(model, text)) for text in split(states, lengths)]

    def _pooled(self, model: Any, states: Any) -> Any:
        """Return the weights of all terms [V] from the states [L, D] of a text."""
        parts = [
            model.packed_logits(states[start : start + ROWS])
            for start in range(0, len(states), ROWS)
        ]
        library = library_of(parts[0])
        if self.how == "max":
            largest = [library.amax(part, 0) for part in parts]
            return self._weights(library.amax(library.stack(largest), 0))
        return library.stack([library.sum(self._weights(part), 0) for part in parts]).sum(0)

    def _weights(self, scores: Any) -> Any:
        """Return log(1 + max(x, 0)) of scores, applied ``logarithms`` times."""
        library = library_of(scores)
        weights = library.clip(widened(scores), 0, None)
        for _ in range(self.logarithms):
            weights = library.log1p(weights)
        return weights


@dataclass(frozen=True)
class OwnTerms:
    """Weights of the tokens of a text only; a term that occurs several times has its maximum.

    The weights come from a layer (BGE-M3), or from a table, which needs no model. Source:
    FlagEmbedding, BGEM3FlagModel; sentence-transformers 6.2, SparseStaticEmbedding.
    """

    layer: Dense | None = None  # [1, D]
    table: np.ndarray | None = None  # [V]
    left_out: frozenset[int] = frozenset()  # ids of special tokens, which get no weight
    how = "max"

    @property
    def layers(self) -> tuple[Dense, ...]:
        """The layers after the encoder."""
        return (self.layer,) if self.layer else ()

    @property
    def described(self) -> dict[str, Any]:
        """The settings that determine the weights, for manifests."""
        if self.table is not None:
            return {"table": hashlib.sha256(self.table.tobytes()).hexdigest()}
        return {"layer": described(self.layers), "left_out": sorted(self.left_out)}

    def terms(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the terms [k, 2] of a text from its token ids [L] and token weights [L, 1].

        With a table, ``weights`` is not used.
        """
        weights = weights[:, 0] if self.table is None else self.table[ids]
        used = (weights != 0) & ~np.isin(ids, [*self.left_out])
        return merged([np.stack([ids[used], weights[used]], 1)], self.how)

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> list[Any]:
        """Return the weight of each token of each text, [L, 1]."""
        for layer in self.layers:  # computed in NumPy, like the modules after a pooling
            library = library_of(states)
            if library is np:
                states = layer(states)
            else:
                weights = layer(states.float().cpu().numpy())
                states = library.from_numpy(weights).to(states.device)
        return split(states, lengths)


TermMaker = TermPooling | OwnTerms


def nonzero(weights: Any) -> Any:
    """Return the terms [k, 2] whose weight is not 0, from the weights [V] of all terms."""
    library = library_of(weights)
    ids = library.argwhere(weights)  # [k, 1]
    return library.concat([ids, weights[ids]], 1)


def largest(terms: np.ndarray, most: int | None) -> np.ndarray:
    """Return the ``most`` terms [k, 2] with the largest weights; ties keep the lower id.

    The order of ids is kept. ``most`` None keeps all terms.
    """
    if most is None or len(terms) <= most:
        return terms
    best = np.argsort(-terms[:, 1], kind="stable")[:most]
    return terms[np.sort(best)]


def merged(windows: Sequence[np.ndarray], how: str) -> np.ndarray:
    """Return the terms [k, 2] of a text from the terms of its windows.

    The weights of a term in several windows are combined by ``how``, "max" or "sum".
    """
    terms = np.concatenate(windows)
    ids, places = np.unique(terms[:, 0], return_inverse=True)
    weights = np.zeros(len(ids), np.float32)
    add: Any = np.maximum if how == "max" else np.add
    add.at(weights, places, terms[:, 1])
    return np.stack([ids, weights], 1).astype(np.float32)


@dataclass(frozen=True)
class TermNames:
    """The names of terms, by their ids."""

    tokenizer: Tokenizer
    width: int  # size of the vocabulary in the model

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, or of a name such as "[31000]"; None for an unknown token."""
        index = self.tokenizer.core.token_to_id(token)
        if index is None and token[:1] == "[" and token[1:-1].isdecimal():
            return int(token[1:-1])
        return index

    def of(self, terms: np.ndarray) -> dict[str, float]:
        """Return the weights of terms [k, 2] by token, largest first.

        Weights have the fewest digits that read back to the same float32. Ids without a token, in
        models with more embeddings than tokens, are named by number: "[31000]".
        """
        name = self.tokenizer.core.id_to_token
        ordered = terms[np.argsort(-terms[:, 1], kind="stable")]
        ids = ordered[:, 0].astype(int).tolist()
        weights = ordered[:, 1].astype("U32").tolist()
        named = [f"[{index}]" if (token := name(index)) is None else token for index in ids]
        return dict(zip(named, map(float, weights), strict=True))


BGE, IDF = "sparse_linear.pt", "idf.json"
LOGARITHMS = {"relu": 1, "log1p_relu": 2}  # activation -> number of logarithms
EXAMPLE = "for example naver/splade-cocondenser-ensembledistil"


def read_sparse(
    folder: ModelFolder, options: EmbedOptions, sentence: Sentence
) -> tuple[EmbedOptions, Sentence, str, Callable[[Tokenizer], TermMaker]]:
    """Read the settings of a sparse model.

    Return the options and the sentence updated from its files, the architecture of the model, and a
    function that returns the term maker for a tokenizer or raises ModelError. The pooling of a bare
    masked language model is "max".

    If queries and documents have different routes, prompt_name "query" selects queries. Raises
    ModelError for a broken file, a missing route, or modules without term weights; UsageError for
    pooling "sum" with a model that takes the maximum.
    """
    most = options.top_terms or folder.json_object(CONFIG).whole("max_active_dims", 1)
    options = replace(options, top_terms=most)
    modules = folder.modules
    bge = is_regular(folder / BGE)
    routed = not bge and has_routes(folder)
    if routed:
        routes = folder.routes or {QUERY: [SentenceModule(TERM_TABLE, "")], DOCUMENT: []}
        name = QUERY if options.prompt_name == QUERY else DOCUMENT
        if name not in routes:
            named = ", ".join(routes)
            raise ModelError(f"{folder / ROUTER}: has no route {name!r}", f"its routes: {named}")
        modules = routes[name]
    table = not bge and [module.class_name for module in modules] == [TERM_TABLE]
    if routed or table:
        place = modules[0].path if table else transformer_path(modules)
        limit = None if table else sentence_limit(folder.subfolder(place).sentence_settings)
        prompts = {QUERY: "", DOCUMENT: "", **sentence.prompts}
        sentence = replace(sentence, transformer=place, max_length=limit, prompts=prompts)
    if not bge and not table:
        pooling = _pooling(folder, modules)
        pooling = pooling if options.pooling == "auto" else replace(pooling, how=options.pooling)
        options = replace(options, pooling=pooling.how)
        return options, sentence, "BertForMaskedLM", lambda _: pooling
    if options.pooling == "sum":
        raise UsageError(
            f"{option('pooling', 'sum')} is not possible: this model takes the maximum"
        )
    options = replace(options, pooling="max", special_tokens=options.special_tokens and bge)
    if bge:
        return options, sentence, "BertModel", partial(_token_weights, folder / BGE)
    return options, sentence, TERM_TABLE, partial(read_terms, folder.subfolder(modules[0].path))


def has_routes(folder: ModelFolder) -> bool:
    """Return True if the model has different routes for queries and documents."""
    return bool(folder.routes) or (not folder.modules and is_regular(folder / IDF))


def _token_weights(path: Path, tokenizer: Tokenizer) -> OwnTerms:
    """Read the layer of BGE-M3 that computes one weight per token."""
    layer = replace(linear(path), activation="ReLU")
    if len(layer.weight) != 1:
        raise ModelError(f"{path}: gives a token {len(layer.weight)} weights, not one")
    special = tokenizer.special_ids()
    mask = tokenizer.roles["mask_token"]
    return OwnTerms(layer, left_out=frozenset({*special.values()} - {special.get(mask)}))


def read_terms(folder: ModelFolder, tokenizer: Tokenizer) -> OwnTerms:
    """Read the table of term weights [V]: from a module's tensor, or from JSON by token.

    Raises ModelError for a tensor that does not have a finite weight for each token.
    """
    named = folder.json_object("config.json").text("path")
    size = len(tokenizer)
    if named is None and not is_regular(folder / IDF):
        table = next(iter(arrays_in(folder.require_weights()).values()), np.zeros(0))
        if table.ndim != 1 or len(table) < size or not np.isfinite(table).all():
            raise ModelError(f"{folder}: has no weight for each of its {size} tokens")
        return OwnTerms(table=table)
    raw = folder.json_object((named and Path(named).name) or IDF)
    weights = np.zeros(size, np.float32)
    for token in raw:
        index = tokenizer.core.token_to_id(token)
        if index is not None and index < size:
            weights[index] = raw.checked(token, NUMBER) or 0
    return OwnTerms(table=weights)


def _pooling(folder: ModelFolder, modules: list[SentenceModule]) -> TermPooling:
    if not modules:
        return TermPooling()
    kinds = [module.class_name for module in modules]
    if len(kinds) != 2 or kinds[0] not in TRANSFORMER_MODULES or kinds[1] != "SpladePooling":
        raise ModelError(
            f"{folder / 'modules.json'}: no weights of terms are made by {', '.join(kinds)}",
            f"leave out {option('sparse')}, or give {option('model')} a sparse one, {EXAMPLE}",
        )
    raw = folder.json_object(f"{modules[1].path}/config.json")
    how = raw.choice("pooling_strategy", TERM_POOLINGS) or "max"
    name = raw.choice("activation_function", [*LOGARITHMS]) or "relu"
    return TermPooling(how, LOGARITHMS[name])
