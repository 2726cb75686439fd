"""The tensors of a BERT and their shapes, derived from the config. Does not import torch.

    expected_shapes(BertConfig())["pooler.dense.weight"]   # (768, 768)

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
NamedShapes: TypeAlias = Iterator[tuple[str, Shape]]


def expected_shapes(
    config: BertConfig, architecture: str = "BertModel", pooler: bool = True
) -> dict[str, Shape]:
    """Return tensor name -> shape of a class, as in its `state_dict()`.

    Without ``pooler``, BERT's pooler is left out. Raises ModelError for a class that is not a BERT.
    """
    if architecture not in HEAD_PARTS:
        raise ModelError(
            f"the architecture {architecture} is unknown", f"known: {', '.join(HEAD_PARTS)}"
        )
    parts = HEAD_PARTS[architecture]
    structure = config.structure
    uses_pooler = architecture == "BertModel" or (parts.pooler and not structure.head_layer(parts))
    shapes = dict(_bert(config, pooler and uses_pooler and structure.pooler))
    if architecture == "BertModel":
        return shapes
    prefixed = {BASE + name: shape for name, shape in shapes.items()}
    return prefixed | dict(_head(config, architecture))


def tied_names(config: BertConfig, architecture: str) -> dict[str, str]:
    """Return the tied tensors of a class: second name -> first name."""
    if not config.tie_word_embeddings:
        return {}
    names = expected_shapes(config, architecture).keys()
    return {second: first for second, first in TIED.items() if {second, first} <= names}


def parameter_count(config: BertConfig, architecture: str, pooler: bool = True) -> int:
    """Return the number of parameters of a class, with or without BERT's pooler.

    A tied tensor counts once.
    """
    tied = tied_names(config, architecture)
    shapes = expected_shapes(config, architecture, pooler)
    return sum(prod(shape) for name, shape in shapes.items() if name not in tied)


def _weight_and_bias(name: str, *shape: int, bias: bool = True) -> NamedShapes:
    """Yield the tensors of a linear layer (outputs, inputs) or of a norm (width)."""
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]


def _bert(config: BertConfig, pooler: bool) -> NamedShapes:
    yield from _embeddings(config)
    yield from _shared_table(config)
    for layer in range(config.distinct_layers):
        yield from _layer(config, layer)
    if convolution := config.structure.convolution:
        width = config.hidden_size
        channels = width // convolution.groups
        yield "encoder.conv.conv.weight", (width, channels, convolution.size)
        yield "encoder.conv.conv.bias", (width,)
        yield from _weight_and_bias("encoder.conv.LayerNorm", width)
    if config.structure.norm_first:
        yield from _weight_and_bias(
            "encoder.LayerNorm", config.hidden_size, bias=config.structure.norm_bias
        )
    if pooler:
        yield from _weight_and_bias("pooler.dense", config.hidden_size, config.hidden_size)


def _embeddings(config: BertConfig) -> NamedShapes:
    width = config.table_size
    structure = config.structure
    yield "embeddings.word_embeddings.weight", (config.vocab_size, width)
    if structure.absolute_positions and config.position_embedding_type != "sinusoidal":
        positions = config.max_position_embeddings
        yield "embeddings.position_embeddings.weight", (positions, width)
    if structure.token_types:
        yield "embeddings.token_type_embeddings.weight", (config.type_vocab_size, width)
    for extra, size in config.extra_embeddings.items():
        yield f"embeddings.extra.{extra}.weight", (size, width)
    if structure.embedding_norm:
        yield from _weight_and_bias("embeddings.LayerNorm", width, bias=structure.norm_bias)
    if structure.embedding_size is not None:
        yield from _weight_and_bias("embeddings.project", config.hidden_size, width)


def _shared_table(config: BertConfig) -> NamedShapes:
    """Yield the tensors of the distances that all layers share."""
    name = "encoder.relative_attention_bias"
    disentangled = config.structure.disentangled
    if disentangled:
        yield f"{name}.table.weight", (2 * disentangled.span, config.hidden_size)
        if disentangled.norm:
            yield from _weight_and_bias(f"{name}.LayerNorm", config.hidden_size)
    elif buckets := config.structure.buckets:
        yield f"{name}.weight", (buckets, config.num_attention_heads)


def _layer(config: BertConfig, layer: int) -> NamedShapes:
    name = f"encoder.layer.{layer}"
    width = config.hidden_size
    structure = config.structure
    yield from _attention(
        config, f"{name}.attention", config.heads(layer), config.key_value_heads(layer)
    )
    if config.position_embedding_type.startswith("relative_key"):
        distances = 2 * config.max_position_embeddings - 1
        yield f"{name}.attention.self.distance_embedding.weight", (distances, config.head_size)
    if config.add_cross_attention:
        heads = config.num_attention_heads
        yield from _attention(config, f"{name}.crossattention", heads, heads)
        yield from _weight_and_bias(f"{name}.crossattention.output.LayerNorm", width)
    intermediate = config.intermediate_size
    first_bias, second_bias = structure.feed_forward_bias
    for matrix in ("dense", "gate") if structure.gated else ("dense",):
        yield from _weight_and_bias(
            f"{name}.intermediate.{matrix}", intermediate, width, bias=first_bias
        )
    yield from _weight_and_bias(f"{name}.output.dense", width, intermediate, bias=second_bias)
    norms = ["attention.output.LayerNorm", "output.LayerNorm"]
    if structure.norm_first:
        norms = ["attention.LayerNorm", "LayerNorm"]
        if structure.embedding_norm and layer == 0:
            norms = ["LayerNorm"]
    if structure.norm_last:
        norms += ["attention.output.branch_LayerNorm", "output.branch_LayerNorm"]
    for norm in norms:
        yield from _weight_and_bias(f"{name}.{norm}", width, bias=structure.norm_bias)
    disentangled = structure.disentangled
    if disentangled and not disentangled.shared:
        projection = f"{name}.attention.self.distance_embedding"
        if disentangled.word_to_distance:
            yield from _weight_and_bias(f"{projection}.key", width, width)
        if disentangled.distance_to_word:
            yield from _weight_and_bias(f"{projection}.query", width, width)


def _attention(config: BertConfig, name: str, heads: int, key_value_heads: int) -> NamedShapes:
    """Yield the tensors of an attention with these numbers of heads."""
    structure = config.structure
    bias = structure.attention_bias
    width = config.hidden_size
    size = config.head_size
    for projection, count in (
        ("query", heads),
        ("key", key_value_heads),
        ("value", key_value_heads),
    ):
        yield from _weight_and_bias(f"{name}.self.{projection}", count * size, width, bias=bias)
    if structure.norm_heads:
        for norm in ("query_LayerNorm", "key_LayerNorm"):
            yield from _weight_and_bias(f"{name}.self.{norm}", size, bias=structure.norm_bias)
    yield from _weight_and_bias(f"{name}.output.dense", width, heads * size, bias=bias)


def _head(config: BertConfig, architecture: str) -> NamedShapes:
    width = config.hidden_size
    structure = config.structure
    parts = HEAD_PARTS[architecture]
    if parts.words:
        yield from _word_head(config)
    if layer := structure.head_layer(parts):
        yield from _weight_and_bias("classifier_head.dense", width, width, bias=layer.bias)
        if layer.norm:
            norm_bias = structure.norm_bias
            yield from _weight_and_bias("classifier_head.LayerNorm", width, bias=norm_bias)
    if architecture == "BertForReplacedTokens":
        yield from _weight_and_bias("discriminator_predictions.dense", width, width)
    if parts.scores:
        yield from _weight_and_bias(parts.scores, parts.outputs or config.num_labels, width)


def _word_head(config: BertConfig) -> NamedShapes:
    """Yield the tensors of the layers that score the vocabulary."""
    name = "cls.predictions"
    width = config.table_size
    head = config.structure.word_head
    norm_bias = config.structure.norm_bias
    if head.bias_twice:
        yield f"{name}.bias", (config.vocab_size,)
    if head.transform:
        yield from _weight_and_bias(
            f"{name}.transform.dense", width, config.hidden_size, bias=head.dense_bias
        )
        yield from _weight_and_bias(f"{name}.transform.LayerNorm", width, bias=norm_bias)
    yield from _weight_and_bias(f"{name}.decoder", config.vocab_size, width, bias=head.bias)
