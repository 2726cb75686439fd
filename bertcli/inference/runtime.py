"""A model that is open, whatever runs it: for vectors and for every task. Nothing here needs torch.

    spec = ModelSpec(folder, Compute(dtype="bfloat16"))
    runtime = open_runtime(spec, tokenizer_loader(spec))
    vectors = result_of(runtime.runner.run(Tokens.listed([[101, 102]]), finish))

Nobody else puts a tokenizer, a config, weights and a device together; `opening` says
who does. What can be told before the weights are read is told before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from bertcli.checkpoints.scan import STATIC, TERM_TABLE, read_config
from bertcli.errors import ModelError, UsageError
from bertcli.files.typed_json import LARGEST_NUMBER
from bertcli.inference.compute import Compute
from bertcli.inference.progress import SILENCE, Tell
from bertcli.inference.runner import Reading, Runner
from bertcli.models.config import BertConfig
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.tokenizer import Tokenizer

TokenizerLoader: TypeAlias = Callable[[], Tokenizer]  # loads it once
UNLIMITED = LARGEST_NUMBER  # tokens of a text, for a model that takes any number


@dataclass(frozen=True)
class ModelSpec:
    """What is to be opened. The processes of a pool are sent it as it is."""

    folder: Path  # with config.json in it
    compute: Compute = field(default_factory=Compute)
    kind: str = "BertModel"  # the class, one of models.heads.ARCHITECTURES, or StaticEmbedding
    reading: Reading = field(default_factory=Reading)
    pooler: bool | None = None  # of a BertModel: None is yes if there are weights for it
    parse_special: bool = True
    extra: bool = False  # whether ids of extra embeddings come with the tokens
    one_device: bool = False  # whether there may be no process per device


@dataclass(frozen=True)
class Runtime:
    """A model that is open."""

    spec: ModelSpec
    tokenizer: Tokenizer
    config: BertConfig
    runner: Runner
    devices: tuple[str, ...]
    threads: int  # of all processes together
    facts: Callable[[], dict[str, Any]]  # what decides the numbers, for manifests
    # Whether a vector depends on its text alone, to the last bit: in any batch, order and number
    # of threads.
    same_bits: bool = False


def token_limit(
    config: BertConfig,
    tokenizer: Tokenizer,
    asked: int | None,
    meant: int | None = None,
    instead: str = "",
) -> int:
    """Return how many tokens a text may have: as asked, as the folder means it, or what fits.

    Raises UsageError when more are asked for than the model has positions.
    """
    fits = config.most_tokens
    if asked is not None and asked > fits:
        raise UsageError(
            f"--max-length {asked} is more than the {fits} positions of this model",
            f"give at most {fits}{instead}",
        )
    return asked or min(meant or tokenizer.limit or fits, fits)


def tokenizer_loader(spec: ModelSpec, tell: Tell = SILENCE) -> TokenizerLoader:
    """Return what loads the tokenizer of a model, when it is called first."""
    return cache(partial(open_tokenizer, spec, tell))


def open_tokenizer(spec: ModelSpec, tell: Tell = SILENCE) -> Tokenizer:
    """Load the tokenizer of a model; ModelError for one that the model cannot take texts from."""
    tokenizer = Tokenizer.load(spec.folder, parse_special=spec.parse_special)
    for message in tokenizer.warnings:
        tell.warn(message)
    if spec.kind in (STATIC, TERM_TABLE):
        return tokenizer
    config = read_config(spec.folder)
    if not spec.extra:
        refuse_extra(spec.folder, config)
    fit_tokenizer(spec.folder, config, tokenizer)
    return tokenizer


def refuse_extra(folder: Path, config: BertConfig) -> None:
    """Raise ModelError for a model that needs ids of extra embeddings."""
    if config.extra_embeddings:
        names = ", ".join(config.extra_embeddings)
        fields = ", ".join(config.fields_of_extra.values())
        raise ModelError(
            f"{folder}: the model has extra embeddings ({names}), and needs ids of words in the "
            f"field {fields}, which this command does not read",
            "embed, classify, tag, fill-mask, next-sentence, evaluate, train and inspect read it",
        )


def fit_tokenizer(folder: Path, config: BertConfig, tokenizer: Tokenizer) -> None:
    """Have a tokenizer give what the model is given in transformers: token types, or none.

    ModelError for a model that cannot take any text as this tokenizer encodes it.
    A checkpoint may hold a tokenizer with more tokens than embeddings: tokens were added, and the
    model was not resized. transformers loads it, and fails at the first such token.
    """
    if beyond := tokenizer.beyond(config.vocab_size):
        token, index = beyond
        raise ModelError(
            f"{folder}: token {token!r} has id {index}, but the model has "
            f"{config.vocab_size} word embeddings; its tokenizer has "
            f"{len(tokenizer)} tokens",
            "resize the model's embeddings and save it again, or remove the added tokens",
        )
    tokenizer.reads_types = "token_type_ids" in tokenizer.model_inputs
    types = max(tokenizer.core.encode("a").type_ids, default=0) if tokenizer.reads_types else 0
    if not config.takes_types(types):
        raise ModelError(
            f"{folder}: the tokenizer gives texts token type {types}, but the model has "
            f"{_types(config.type_vocab_size)}",
            "use the tokenizer that belongs to this model",
        )


def refuse_pairs(batch: Sequence[Encoded], config: BertConfig) -> None:
    """Raise ModelError for a pair whose token types a model has no embeddings for."""
    for item in batch:
        if item.record.pair is None:
            continue
        types = max(item.columns["token_type_ids"], default=0)
        if not config.takes_types(types):
            raise ModelError(
                f"{item.record.where}: a text pair has token type {types}, but the model has "
                f"{_types(config.type_vocab_size)}",
                "give single texts, or use a model that was trained on pairs",
            )


def _types(count: int) -> str:
    return f"{count} token type embedding{'s' if count > 1 else ''} (type_vocab_size)"
