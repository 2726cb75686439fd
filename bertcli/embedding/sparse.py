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

from bertcli.embedding.late_interaction import DOCUMENT, QUERY, read_pickled_linear
from bertcli.embedding.options import SENTENCE_CONFIG, TERM_POOLINGS, EmbedOptions, SentenceSettings
from bertcli.embedding.pooling import split_by_sizes, widen_half_precision
from bertcli.embedding.sentence_modules import Dense, describe_modules, read_float_arrays
from bertcli.engines.engine import PackedTokens, library_of
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
from bertcli.tokenizing.batch import TokenBatch
from bertcli.tokenizing.tokenizer import Tokenizer

TOKENS_PER_STEP = 64  # tokens scored at once, [TOKENS_PER_STEP, V]; few because V is large


@dataclass(frozen=True)
class TermPooling:
    """The reduction of packed states to term weights by a masked language model (SPLADE)."""

    how: str = "max"
    logarithms: int = 1  # times that log(1 + x) is applied: 2 in some models of OpenSearch

    table = None
    layers: ClassVar[tuple[Dense, ...]] = ()  # layers after the encoder

    @property
    def manifest_settings(self) -> dict[str, Any]:
        """The settings that determine the weights, for manifests."""
        return {"logarithms": self.logarithms}

    def terms(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the terms [k, 2] of a text from ``weights``, the result of calling this object."""
        return weights.astype(np.float32)

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> list[Any]:
        """Return the terms [k, 2] of each text: ascending ids and weights.

        Half precision becomes float32.
        """
        return [
            nonzero_terms(self._pooled(model, text)) for text in split_by_sizes(states, lengths)
        ]

    def _pooled(self, model: Any, states: Any) -> Any:
        """Return the weights of all terms [V] from the states [L, D] of a text."""
        scores = [
            model.packed_logits(states[start : start + TOKENS_PER_STEP])
            for start in range(0, len(states), TOKENS_PER_STEP)
        ]
        library = library_of(scores[0])
        if self.how == "max":
            maxima = [library.amax(step, 0) for step in scores]
            return self._weights(library.amax(library.stack(maxima), 0))
        sums = [library.sum(self._weights(step), 0) for step in scores]
        return library.stack(sums).sum(0)

    def _weights(self, scores: Any) -> Any:
        """Return log(1 + max(x, 0)) of scores, applied ``logarithms`` times."""
        library = library_of(scores)
        weights = library.clip(widen_half_precision(scores), 0, None)
        for _ in range(self.logarithms):
            weights = library.log1p(weights)
        return weights


@dataclass(frozen=True)
class TokenWeights:
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
    def manifest_settings(self) -> dict[str, Any]:
        """The settings that determine the weights, for manifests."""
        if self.table is not None:
            return {"table": hashlib.sha256(self.table.tobytes()).hexdigest()}
        return {"layer": describe_modules(self.layers), "left_out": sorted(self.left_out)}

    def terms(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the terms [k, 2] of a text from its token ids [L] and token weights [L, 1].

        With a table, ``weights`` is not used.
        """
        weights = weights[:, 0] if self.table is None else self.table[ids]
        used = (weights != 0) & ~np.isin(ids, [*self.left_out])
        return merge_terms([np.stack([ids[used], weights[used]], 1)], self.how)

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> list[Any]:
        """Return the weight of each token of each text, [L, 1]."""
        for layer in self.layers:  # computed in NumPy, like the modules after a pooling
            library = library_of(states)
            if library is np:
                states = layer(states)
            else:
                weights = layer(states.float().cpu().numpy())
                states = library.from_numpy(weights).to(states.device)
        return split_by_sizes(states, lengths)


# Reduces the states of texts to term weights, and says how weights of windows are merged.
TermReduction = TermPooling | TokenWeights


def nonzero_terms(weights: Any) -> Any:
    """Return the terms [k, 2] whose weight is not 0, from the weights [V] of all terms."""
    library = library_of(weights)
    ids = library.argwhere(weights)  # [k, 1]
    return library.concat([ids, weights[ids]], 1)


def largest_terms(terms: np.ndarray, count: int | None) -> np.ndarray:
    """Return the ``count`` terms [k, 2] with the largest weights; ties keep the lower id.

    The order of ids is kept. ``count`` None keeps all terms.
    """
    if count is None or len(terms) <= count:
        return terms
    best = np.argsort(-terms[:, 1], kind="stable")[:count]
    return terms[np.sort(best)]


def terms_of_records(reduction: TermReduction, batch: TokenBatch, outputs: Any) -> list[np.ndarray]:
    """Return the terms [k, 2] of each record of a batch.

    ``outputs`` are the results of the reduction for each window.
    """
    texts = PackedTokens.of(batch)
    ids = split_by_sizes(texts.ids, texts.lengths.tolist())
    terms = [reduction.terms(*pair) for pair in zip(ids, outputs, strict=True)]
    if len(batch.windows_per_record) == len(batch):
        return terms
    return [
        merge_terms(windows, reduction.how)
        for windows in split_by_sizes(terms, batch.windows_per_record)
    ]


def merge_terms(windows: Sequence[np.ndarray], how: str) -> np.ndarray:
    """Return the terms [k, 2] of a text from the terms of its windows.

    The weights of a term in several windows are combined by ``how``, "max" or "sum".
    """
    terms = np.concatenate(windows)
    ids, indices = np.unique(terms[:, 0], return_inverse=True)
    weights = np.zeros(len(ids), np.float32)
    combine: Any = np.maximum if how == "max" else np.add
    combine.at(weights, indices, terms[:, 1])
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
        descending = terms[np.argsort(-terms[:, 1], kind="stable")]
        names = [self._name(index) for index in descending[:, 0].astype(int).tolist()]
        weights = descending[:, 1].astype("U32").tolist()
        return dict(zip(names, map(float, weights), strict=True))

    def _name(self, index: int) -> str:
        token = self.tokenizer.core.id_to_token(index)
        return f"[{index}]" if token is None else token


BGE_LAYER = "sparse_linear.pt"
TABLE = "idf.json"
LOGARITHMS = {"relu": 1, "log1p_relu": 2}  # activation -> number of logarithms
EXAMPLE = "for example naver/splade-cocondenser-ensembledistil"


def read_sparse(
    folder: ModelFolder, options: EmbedOptions, sentence: SentenceSettings
) -> tuple[EmbedOptions, SentenceSettings, str, Callable[[Tokenizer], TermReduction]]:
    """Read the settings of a sparse model.

    Return the options and the sentence updated from its files, the architecture of the model, and a
    function that returns the reduction for a tokenizer or raises ModelError. The pooling of a bare
    masked language model is "max".

    If queries and documents have different routes, prompt_name "query" selects queries. Raises
    ModelError for a broken file, a missing route, or modules without term weights; UsageError for
    pooling "sum" with a model that takes the maximum.
    """
    top_terms = options.top_terms or folder.json_object(SENTENCE_CONFIG).integer(
        "max_active_dims", 1
    )
    options = replace(options, top_terms=top_terms)
    modules = folder.modules
    is_bge = is_regular(folder / BGE_LAYER)
    is_routed = not is_bge and has_routes(folder)
    if is_routed:
        routes = folder.routes or {QUERY: [SentenceModule(TERM_TABLE, "")], DOCUMENT: []}
        route = QUERY if options.prompt_name == QUERY else DOCUMENT
        if route not in routes:
            names = ", ".join(routes)
            raise ModelError(f"{folder / ROUTER}: has no route {route!r}", f"its routes: {names}")
        modules = routes[route]
    is_table = not is_bge and [module.class_name for module in modules] == [TERM_TABLE]
    if is_routed or is_table:
        limit = None
        if is_table:
            path = modules[0].path
        else:
            path = transformer_path(modules)
            limit = sentence_limit(folder.subfolder(path).sentence_settings)
        prompts = {QUERY: "", DOCUMENT: "", **sentence.prompts}
        sentence = replace(sentence, transformer=path, max_length=limit, prompts=prompts)
    if not is_bge and not is_table:
        pooling = _read_term_pooling(folder, modules)
        if options.pooling != "auto":
            pooling = replace(pooling, how=options.pooling)
        options = replace(options, pooling=pooling.how)
        return options, sentence, "BertForMaskedLM", lambda _: pooling
    if options.pooling == "sum":
        raise UsageError(
            f"{option('pooling', 'sum')} is not possible: this model takes the maximum"
        )
    options = replace(options, pooling="max", special_tokens=options.special_tokens and is_bge)
    if is_bge:
        return options, sentence, "BertModel", partial(_read_token_weights, folder / BGE_LAYER)
    return (
        options,
        sentence,
        TERM_TABLE,
        partial(read_term_table, folder.subfolder(modules[0].path)),
    )


def has_routes(folder: ModelFolder) -> bool:
    """Return True if the model has different routes for queries and documents."""
    return bool(folder.routes) or (not folder.modules and is_regular(folder / TABLE))


def _read_token_weights(path: Path, tokenizer: Tokenizer) -> TokenWeights:
    """Read the layer of BGE-M3 that computes one weight per token."""
    layer = replace(read_pickled_linear(path), activation="ReLU")
    if len(layer.weight) != 1:
        raise ModelError(f"{path}: gives a token {len(layer.weight)} weights, not one")
    special = tokenizer.special_ids()
    mask = tokenizer.roles["mask_token"]
    return TokenWeights(layer, left_out=frozenset({*special.values()} - {special.get(mask)}))


def read_term_table(folder: ModelFolder, tokenizer: Tokenizer) -> TokenWeights:
    """Read the table of term weights [V]: from a module's tensor, or from JSON by token.

    Raises ModelError for a tensor that does not have a finite weight for each token.
    """
    path = folder.json_object("config.json").text("path")
    size = len(tokenizer)
    if path is None and not is_regular(folder / TABLE):
        table = next(iter(read_float_arrays(folder.require_weights()).values()), np.zeros(0))
        if table.ndim != 1 or len(table) < size or not np.isfinite(table).all():
            raise ModelError(f"{folder}: has no weight for each of its {size} tokens")
        return TokenWeights(table=table)
    token_weights = folder.json_object((path and Path(path).name) or TABLE)
    weights = np.zeros(size, np.float32)
    for token in token_weights:
        index = tokenizer.core.token_to_id(token)
        if index is not None and index < size:
            weights[index] = token_weights.checked(token, NUMBER) or 0
    return TokenWeights(table=weights)


def _read_term_pooling(folder: ModelFolder, modules: list[SentenceModule]) -> TermPooling:
    """Return the pooling of a masked language model, from the config of its SpladePooling."""
    if not modules:
        return TermPooling()
    names = [module.class_name for module in modules]
    if len(names) != 2 or names[0] not in TRANSFORMER_MODULES or names[1] != "SpladePooling":
        raise ModelError(
            f"{folder / 'modules.json'}: {', '.join(names)} computes no term weights",
            f"leave out {option('sparse')}, or give {option('model')} a sparse one, {EXAMPLE}",
        )
    config = folder.json_object(f"{modules[1].path}/config.json")
    how = config.choice("pooling_strategy", TERM_POOLINGS) or "max"
    activation = config.choice("activation_function", [*LOGARITHMS]) or "relu"
    return TermPooling(how, LOGARITHMS[activation])
