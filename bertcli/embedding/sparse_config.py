"""What the folder of a masked language model, or of a SparseEncoder, says of weights of terms.

    modules.json            Transformer, SpladePooling
    1_SpladePooling/config.json, config_sentence_transformers.json

Nothing here needs torch. Source: sentence-transformers 6.2, SparseEncoder and SpladePooling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bertcli.checkpoints.scan import TRANSFORMERS, SentenceModule, read_modules
from bertcli.embedding.options import TERM_POOLINGS, EmbedOptions
from bertcli.embedding.sentence_config import CONFIG
from bertcli.embedding.term_weights import TermPooling
from bertcli.errors import ModelError
from bertcli.files.typed_json import read_object

LOGARITHMS = {"relu": 1, "log1p_relu": 2}  # by the names of activations
EXAMPLE = "for example naver/splade-cocondenser-ensembledistil"


@dataclass(frozen=True)
class SparseModel:
    """How weights of terms are made: what the user chose, else what the model's files specify."""

    options: EmbedOptions
    pooling: TermPooling


def read_sparse(folder: Path, options: EmbedOptions) -> SparseModel:
    """Return how a model makes weights of terms; a bare masked language model takes the maximum.

    Raises ModelError when a file is broken, or the modules make none.
    """
    pooling = _pooling(folder)
    if options.pooling != "auto":
        pooling = replace(pooling, how=options.pooling)
    most = options.top_terms or read_object(folder / CONFIG).whole("max_active_dims", 1)
    return SparseModel(replace(options, pooling=pooling.how, top_terms=most), pooling)


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
