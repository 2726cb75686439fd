"""What the folder of a masked language model, or of a SparseEncoder, says of weights of terms.

    modules.json            Transformer, SpladePooling
    1_SpladePooling/config.json, config_sentence_transformers.json
    router_config.json      other modules for queries, as SparseStaticEmbedding
    idf.json                weights of the terms of queries, beside a masked language model
    sparse_linear.pt        BGE-M3

Nothing here needs torch. Source: sentence-transformers 6.2, SparseEncoder and SpladePooling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from bertcli.embedding.term_weights import OwnTerms, TermMaker, TermPooling
from bertcli.errors import ModelError, UsageError
from bertcli.files.typed_json import is_regular, read_object
from bertcli.tokenizing.model_files import sentence_limit, sentence_settings
from bertcli.tokenizing.tokenizer import Tokenizer

BGE, IDF = "sparse_linear.pt", "idf.json"
SPECIAL = ("cls_token", "sep_token", "bos_token", "eos_token", "pad_token", "unk_token")
LOGARITHMS = {"relu": 1, "log1p_relu": 2}  # by the names of activations
EXAMPLE = "for example naver/splade-cocondenser-ensembledistil"


class SparseModel(NamedTuple):
    """How weights of terms are made: what the user chose, else what the model's files specify."""

    options: EmbedOptions
    sentence: Sentence
    kind: str  # the class of the model
    maker: Callable[[Tokenizer], TermMaker]  # of the terms of a tokenizer's tokens; or ModelError


def read_sparse(folder: Path, options: EmbedOptions, sentence: Sentence) -> SparseModel:
    """Return how a model makes weights of terms; a bare masked language model takes the maximum.

    Where queries are made in another way than documents, the prompt's name tells them apart. Raises
    ModelError when a file is broken, or the modules make none.
    """
    most = options.top_terms or read_object(folder / CONFIG).whole("max_active_dims", 1)
    options, modules = replace(options, top_terms=most), read_modules(folder)
    bge, routed = is_regular(folder / BGE), has_routes(folder)
    if routed and not bge:
        routes = read_routes(folder) or {QUERY: [SentenceModule(TERM_TABLE, "")], DOCUMENT: []}
        name = QUERY if options.prompt_name == QUERY else DOCUMENT
        if name not in routes:
            named = ", ".join(routes)
            raise ModelError(f"{folder / ROUTER}: has no route {name!r}", f"its routes: {named}")
        modules = routes[name]
    table = not bge and [module.kind for module in modules] == [TERM_TABLE]
    if (routed or table) and not bge:
        place = modules[0].path if table else transformer_path(modules)
        limit = None if table else sentence_limit(sentence_settings(folder / place))
        prompts = {QUERY: "", DOCUMENT: "", **sentence.prompts}
        sentence = replace(sentence, transformer=place, max_length=limit, prompts=prompts)
    if not bge and not table:
        pooling = _pooling(folder, modules)
        pooling = pooling if options.pooling == "auto" else replace(pooling, how=options.pooling)
        options = replace(options, pooling=pooling.how)
        return SparseModel(options, sentence, "BertForMaskedLM", lambda _: pooling)
    if options.pooling == "sum":
        raise UsageError("--pooling sum is not possible: this model takes the maximum")
    options = replace(options, pooling="max", special_tokens=options.special_tokens and bge)
    if bge:
        return SparseModel(options, sentence, "BertModel", partial(_token_weights, folder / BGE))
    maker = partial(read_terms, folder / modules[0].path)
    return SparseModel(options, sentence, TERM_TABLE, maker)


def has_routes(folder: Path) -> bool:
    """Tell whether queries and documents become terms in different ways."""
    return bool(read_routes(folder)) or (not read_modules(folder) and is_regular(folder / IDF))


def _token_weights(path: Path, tokenizer: Tokenizer) -> OwnTerms:
    """Read the layer that gives each token its weight."""
    layer = replace(linear(path), activation="ReLU")
    if layer.width != 1:
        raise ModelError(f"{path}: gives a token {layer.width} weights, not one")
    names = (tokenizer.roles.get(role) for role in SPECIAL)
    ids = {tokenizer.core.token_to_id(name) for name in names if name}
    return OwnTerms(layer, left_out=frozenset(index for index in ids if index is not None))


def read_terms(folder: Path, tokenizer: Tokenizer) -> OwnTerms:
    """Read the weight of each token, [V]: of a module's tensor, or of a file by their names."""
    named = read_object(folder / "config.json").text("path")
    size = len(tokenizer)
    if named is None and not is_regular(folder / IDF):
        tensors = read_tensors(require_weights(folder))
        table = next((np.array(mapped(tensor), np.float32) for tensor in tensors), np.zeros(0))
        if table.ndim != 1 or len(table) < size or not np.isfinite(table).all():
            raise ModelError(f"{folder}: has no weight for each of its {size} tokens")
        return OwnTerms(table=table)
    raw = read_object(folder / ((named and Path(named).name) or IDF))
    weights = np.zeros(size, np.float32)
    for token in raw:
        index = tokenizer.core.token_to_id(token)
        if index is not None and index < size:
            weights[index] = raw.number(token) or 0
    return OwnTerms(table=weights)


def _pooling(folder: Path, modules: list[SentenceModule]) -> TermPooling:
    if not modules:
        return TermPooling()
    kinds = [module.kind for module in modules]
    if len(kinds) != 2 or kinds[0] not in TRANSFORMERS or kinds[1] != "SpladePooling":
        raise ModelError(
            f"{folder / 'modules.json'}: no weights of terms are made by {', '.join(kinds)}",
            f"leave out --sparse, or give --model a sparse one, {EXAMPLE}",
        )
    raw = read_object(folder / modules[1].path / "config.json")
    chosen = []
    for key, known in (("pooling_strategy", TERM_POOLINGS), ("activation_function", LOGARITHMS)):
        chosen.append(raw.text(key) or next(iter(known)))
        if chosen[-1] not in known:
            problem = f"{raw.source}: unsupported {key} {chosen[-1]!r}"
            raise ModelError(problem, f"known: {', '.join(known)}")
    return TermPooling(chosen[0], LOGARITHMS[chosen[1]])
