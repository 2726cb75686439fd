"""The config to train: a config.json, a named size, or that of a checkpoint. No torch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from bertcli.checkpoints import shapes
from bertcli.errors import InputError, ModelError
from bertcli.files.typed_json import read_object
from bertcli.models.config import BertConfig
from bertcli.training.shards import Instances

# Layers and hidden size. Source: Well-Read Students Learn Better, table 1; base: BERT, section 3.
SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
}
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
HEAD, WIDER = 64, 4  # the width of a head, and of the feed-forward layer in hidden sizes
FIX = f"fix it, or give --config one of {', '.join(SIZES)}"
WEIGHT_TO_ADAM = 4  # a weight, its gradient, and the two numbers that Adam remembers of it
ROUNDING = 128  # an embedding may have as many rows more as make it a multiple of up to this


def named(name: str) -> BertConfig:
    """Return the config of one of SIZES."""
    layers, hidden = SIZES[name]
    return BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        intermediate_size=WIDER * hidden,
    )


def read(name: str, data: Instances) -> BertConfig:
    """Read `--config`: a size, or a file in which vocab_size and pad_token_id may be missing.

    ModelError when it is not the config of a BERT, or does not fit the instances.
    """
    if name in SIZES:
        config, said = named(name), set()
    else:
        if not os.path.isfile(name):
            raise ModelError(
                f"--config {name}: file not found",
                f"give a config.json, or one of {', '.join(SIZES)}",
            )
        try:
            config, said = BertConfig.from_file(Path(name)), set(read_object(Path(name)))
        except ModelError as bad:
            raise ModelError(str(bad), FIX) from None
        if said.isdisjoint(SHAPE):  # the defaults are those of bert-base
            raise ModelError(f"{name}: names none of {', '.join(SHAPE)}", FIX)
    if "vocab_size" not in said:
        config = replace(config, vocab_size=data.vocab_size)
    if "pad_token_id" not in said:
        config = replace(config, pad_token_id=data.pad_token_id)
    check(config, data, name, given=True)
    return config


def check(config: BertConfig, data: Instances, source: str, *, given: bool) -> None:
    """Raise ModelError when a config cannot be trained on these instances.

    ``given``: by the user; else it is the config of a model.
    """
    if "BertForPreTraining" not in config.family.classes.values():
        raise ModelError(
            f"{source}: pretraining predicts words and whether sentences follow each other; "
            f"{config.family.title} has no such head",
            FIX,
        )
    size, tokens = config.vocab_size, data.vocab_size
    if not tokens <= size < tokens + ROUNDING:
        raise ModelError(
            f"{source}: vocab_size {size} does not match the instances: their tokenizer has "
            f"{tokens} tokens",
            "remove vocab_size, or prepare the instances with the other tokenizer"
            if given
            else "prepare the instances with this model's tokenizer (-m)",
        )
    if data.max_length > config.most_tokens:
        raise ModelError(
            f"{source}: max_position_embeddings {config.max_position_embeddings} is less than "
            f"the {data.max_length} tokens of an instance",
            f"{'raise it, or ' if given else ''}prepare shorter instances (--max-length)",
        )
    if config.type_vocab_size < 2:
        raise ModelError(
            f"{source}: type_vocab_size {config.type_vocab_size}, but sentence pairs need 2", FIX
        )
    for key in ("is_decoder", "add_cross_attention"):
        if getattr(config, key):
            raise ModelError(f"{source}: {key} is not supported in pretraining", "remove it")
    if config.hidden_size % config.num_attention_heads:
        raise ModelError(
            f"{source}: hidden_size {config.hidden_size} is not a multiple of "
            f"num_attention_heads {config.num_attention_heads}",
            FIX,
        )


def with_extra(config: BertConfig, data: Instances, other: Instances, source: str) -> BertConfig:
    """Return the config with the extra embeddings of instances, and of others held out.

    Sizes are those of the config, else what the ids need. ModelError for an embedding that the
    instances have no ids for, or more than it has.
    """
    held = other.extra_embeddings
    sizes = {name: max(size, held[name]) for name, size in data.extra_embeddings.items()}
    for name, size in config.extra_embeddings.items():
        if name not in sizes:
            raise ModelError(
                f"{source}: the model has an extra embedding {name}, but the instances have no "
                "ids for it",
                f"prepare the instances with --extra {name}=FIELD",
            )
        if sizes[name] > size:
            raise ModelError(
                f"{source}: the extra embedding {name} has {size} ids, but the instances have "
                f"ids up to {sizes[name] - 1}",
                f"correct the ids in the field {data.extra_fields[name]}, or raise the size in "
                "extra_embeddings",
            )
    embeddings = {**sizes, **config.extra_embeddings}
    return replace(config, extra_embeddings=embeddings, extra_fields=data.extra_fields)


def refuse_too_large(config: BertConfig, source: str, numbers: int) -> None:
    """Raise ModelError when so many numbers a weight are more than all memory of this machine.

    Asked for in small pieces, they would be had until the system ends this process, or another.
    """
    weights = shapes.count(config)
    needed = numbers * 4 * weights
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not known on this system
        return
    if needed > there:
        raise ModelError(
            f"{source}: {weights:,} weights need {needed / 1e9:,.0f} GB of memory, and this "
            f"machine has {there / 1e9:,.0f} GB",
            "train a smaller model",
        )


def refuse_other(data: Instances, other: Instances) -> None:
    """Raise InputError when held-out instances are not of the same kind."""
    if data.vocab_size != other.vocab_size:
        raise InputError(
            f"{other.folder}: its tokenizer has {other.vocab_size} tokens, that of "
            f"{data.folder} has {data.vocab_size}",
            "prepare both with the same tokenizer",
        )
