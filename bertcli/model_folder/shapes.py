"""The tensors of a BERT and their shapes, derived from the config. Does not import torch.

    expected(BertConfig())["pooler.dense.weight"]   # (768, 768)

Names equal those of the modules' state dicts; a test compares them for every class.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeAlias

from bertcli.errors import ModelError
from bertcli.families.family import BASE
from bertcli.families.structure import HEAD_PARTS
from bertcli.model_folder.names import TIED
from bertcli.models.config import BertConfig

Shape: TypeAlias = tuple[int, ...]
Named: TypeAlias = Iterator[tuple[str, Shape]]


def expected(config: BertConfig, name: str = "BertModel", pooler: bool = True) -> dict[str, Shape]:
    """Return tensor name -> shape of the class `name`, as in its `state_dict()`.

    Without ``pooler``, BERT's pooler is left out. Raises ModelError for a class that is not a BERT.
    """
    if name not in HEAD_PARTS:
        raise ModelError(f"the architecture {name} is unknown", f"known: {', '.join(HEAD_PARTS)}")
    parts = HEAD_PARTS[name]
    structure = config.structure
    pooled = name == "BertModel" or (parts.pooler and not structure.own_layer(parts))
    body = dict(_bert(config, pooler and pooled and structure.pooler))
    if name == "BertModel":
        return body
    return {BASE + part: shape for part, shape in body.items()} | dict(_head(config, name))


def tied(config: BertConfig, name: str) -> dict[str, str]:
    """Return the tied tensors: second name -> first name."""
    names = expected(config, name) if config.tie_word_embeddings else {}
    return {second: first for second, first in TIED.items() if {second, first} <= names.keys()}


def parameters(config: BertConfig, name: str, pooler: bool = True) -> int:
    """Return the parameter count of a class, with or without BERT's pooler.

    A tied tensor counts once.
    """
    second = tied(config, name)
    shapes = expected(config, name, pooler)
    return sum(prod(shape) for tensor, shape in shapes.items() if tensor not in second)


def _part(name: str, *shape: int, bias: bool = True) -> Named:
    """Yield the tensors of a linear layer (outputs, inputs) or of a norm (width)."""
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]


def _bert(config: BertConfig, pooler: bool) -> Named:
    yield from _embeddings(config)
    yield from _shared_table(config)
    for layer in range(config.distinct_layers):
        yield from _layer(config, layer)
    if beside := config.structure.convolution:
        width = config.hidden_size
        yield "encoder.conv.conv.weight", (width, width // beside.groups, beside.size)
        yield "encoder.conv.conv.bias", (width,)
        yield from _part("encoder.conv.LayerNorm", width)
    if config.structure.norm_first:
        yield from _part("encoder.LayerNorm", config.hidden_size, bias=config.structure.norm_bias)
    if pooler:
        yield from _part("pooler.dense", config.hidden_size, config.hidden_size)


def _embeddings(config: BertConfig) -> Named:
    width = config.table_size
    structure = config.structure
    yield "embeddings.word_embeddings.weight", (config.vocab_size, width)
    if structure.absolute_positions and config.position_embedding_type != "sinusoidal":
        places = config.max_position_embeddings
        yield "embeddings.position_embeddings.weight", (places, width)
    if structure.token_types:
        yield "embeddings.token_type_embeddings.weight", (config.type_vocab_size, width)
    for extra, size in config.extra_embeddings.items():
        yield f"embeddings.extra.{extra}.weight", (size, width)
    yield from _part("embeddings.LayerNorm", width, bias=structure.norm_bias)
    if structure.embedding_size is not None:
        yield from _part("embeddings.project", config.hidden_size, width)


def _shared_table(config: BertConfig) -> Named:
    name = "encoder.relative_attention_bias"
    disentangled = config.structure.disentangled
    if disentangled:
        yield f"{name}.table.weight", (2 * disentangled.span, config.hidden_size)
        if disentangled.norm:
            yield from _part(f"{name}.LayerNorm", config.hidden_size)
    elif buckets := config.structure.buckets:
        yield f"{name}.weight", (buckets, config.num_attention_heads)


def _layer(config: BertConfig, layer: int) -> Named:
    name = f"encoder.layer.{layer}"
    width = config.hidden_size
    structure = config.structure
    yield from _attention(config, f"{name}.attention", config.heads(layer) * config.head_size)
    if config.position_embedding_type.startswith("relative_key"):
        distances = 2 * config.max_position_embeddings - 1
        yield f"{name}.attention.self.distance_embedding.weight", (distances, config.head_size)
    if config.add_cross_attention:
        across = config.num_attention_heads * config.head_size
        yield from _attention(config, f"{name}.crossattention", across)
        yield from _part(f"{name}.crossattention.output.LayerNorm", width)
    inner = config.intermediate_size
    wide, narrow = structure.feed_forward_bias
    for part in ("dense", "gate") if structure.gated else ("dense",):
        yield from _part(f"{name}.intermediate.{part}", inner, width, bias=wide)
    yield from _part(f"{name}.output.dense", width, inner, bias=narrow)
    norms = ["attention.output.LayerNorm", "output.LayerNorm"]
    if structure.norm_first:
        norms = ["attention.LayerNorm", "LayerNorm"][layer == 0 :]
    for norm in norms:
        yield from _part(f"{name}.{norm}", width, bias=structure.norm_bias)
    if disentangled := structure.disentangled:
        parts = {"key": disentangled.word_to_distance, "query": disentangled.distance_to_word}
        for part in (part for part, used in parts.items() if used and not disentangled.shared):
            yield from _part(f"{name}.attention.self.distance_embedding.{part}", width, width)


def _attention(config: BertConfig, name: str, heads: int) -> Named:
    """Yield the tensors of an attention; `heads` is the total width of all heads."""
    bias = config.structure.attention_bias
    for part in ("query", "key", "value"):
        yield from _part(f"{name}.self.{part}", heads, config.hidden_size, bias=bias)
    yield from _part(f"{name}.output.dense", config.hidden_size, heads, bias=bias)


def _head(config: BertConfig, name: str) -> Named:
    width = config.hidden_size
    words = config.vocab_size
    structure = config.structure
    parts = HEAD_PARTS[name]
    if parts.words:
        tables = config.table_size
        lm = "cls.predictions"
        head = structure.word_head
        if head.bias_twice:
            yield f"{lm}.bias", (words,)
        yield from _part(f"{lm}.transform.dense", tables, width, bias=head.dense_bias)
        yield from _part(f"{lm}.transform.LayerNorm", tables, bias=structure.norm_bias)
        yield from _part(f"{lm}.decoder", words, tables, bias=head.bias)
    if own := structure.own_layer(parts):
        yield from _part("classifier_head.dense", width, width, bias=own.bias)
        if own.norm:
            yield from _part("classifier_head.LayerNorm", width, bias=structure.norm_bias)
    if name == "BertForReplacedTokens":
        yield from _part("discriminator_predictions.dense", width, width)
    if parts.scores:
        yield from _part(parts.scores, parts.outputs or config.num_labels, width)
