"""What the folder of a masked language model, or of a SparseEncoder, says of weights of terms.

    modules.json            Transformer, SpladePooling
    1_SpladePooling/config.json, config_sentence_transformers.json
    sparse_linear.pt        BGE-M3

Nothing here needs torch. Source: sentence-transformers 6.2, SparseEncoder and SpladePooling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bertcli.checkpoints.scan import TRANSFORMERS, SentenceModule, read_modules
from bertcli.embedding.late_interaction import linear
from bertcli.embedding.options import TERM_POOLINGS, EmbedOptions
from bertcli.embedding.sentence_config import CONFIG
from bertcli.embedding.term_weights import OwnTerms, TermMaker, TermPooling
from bertcli.errors import ModelError, UsageError
from bertcli.files.typed_json import is_regular, read_object
from bertcli.tokenizing.tokenizer import Tokenizer

BGE = "sparse_linear.pt"
SPECIAL = ("cls_token", "sep_token", "bos_token", "eos_token", "pad_token", "unk_token")
LOGARITHMS = {"relu": 1, "log1p_relu": 2}  # by the names of activations
EXAMPLE = "for example naver/splade-cocondenser-ensembledistil"


@dataclass(frozen=True)
class SparseModel:
    """How weights of terms are made: what the user chose, else what the model's files specify."""

    options: EmbedOptions
    terms: TermMaker


def read_sparse(folder: Path, options: EmbedOptions) -> SparseModel:
    """Return how a model makes weights of terms; a bare masked language model takes the maximum.

    Raises ModelError when a file is broken, or the modules make none.
    """
    most = options.top_terms or read_object(folder / CONFIG).whole("max_active_dims", 1)
    if is_regular(folder / BGE):
        if options.pooling == "sum":
            raise UsageError("--pooling sum is not possible: this model takes the maximum")
        layer = replace(linear(folder / BGE), activation="ReLU")
        if layer.width != 1:
            raise ModelError(f"{folder / BGE}: gives a token {layer.width} weights, not one")
        return SparseModel(replace(options, pooling="max", top_terms=most), OwnTerms(layer))
    pooling = _pooling(folder)
    if options.pooling != "auto":
        pooling = replace(pooling, how=options.pooling)
    return SparseModel(replace(options, pooling=pooling.how, top_terms=most), pooling)


def left_out(terms: TermMaker, tokenizer: Tokenizer) -> TermMaker:
    """Return what makes terms, with the special tokens of which it makes none."""
    if isinstance(terms, TermPooling):
        return terms
    names = (tokenizer.roles.get(role) for role in SPECIAL)
    ids = {tokenizer.core.token_to_id(name) for name in names if name}
    return replace(terms, left_out=frozenset(one for one in ids if one is not None))


def _pooling(folder: Path) -> TermPooling:
    modules = read_modules(folder)
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
