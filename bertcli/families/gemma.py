"""Gemma 3 with bidirectional attention, the network of EmbeddingGemma.

Norms before and after each block, norms of queries and keys, keys and values that heads share, and
local attention in most layers. Source: EmbeddingGemma: Powerful and Lightweight Text
Representations; Gemma 3 Technical Report; the class Gemma3TextModel of transformers.
"""

from __future__ import annotations

from bertcli.families.family import (
    GATED_FEED_FORWARD,
    ROTARY_ATTENTION,
    Family,
    classes,
    head_size,
    key_value_heads,
    read_rotary,
    refuse_variants,
    unsupported,
)
from bertcli.families.structure import Dropouts, Rotary, Structure
from bertcli.io.typed_json import POSITIVE, SWITCH, JsonObject, whole_number

SLIDING = "sliding_attention"
FULL = "full_attention"


def structure(values: JsonObject) -> Structure:
    """Return how EmbeddingGemma differs from BERT. Raises ModelError for other networks."""
    refuse_variants(values, {"use_bidirectional_attention": True, "attn_logit_softcapping": None})
    if values["query_pre_attn_scalar"] != values["head_dim"]:
        raise unsupported(values, "query_pre_attn_scalar", "the size of a head (head_dim)")
    layer_types = _layer_types(values)
    rotary = _rotary(values)
    reach = values.needed("sliding_window", whole_number()) // 2
    return Structure(
        absolute_positions=False,
        token_types=False,
        embedding_scale=values["hidden_size"] ** 0.5,
        embedding_norm=False,
        pooler=False,
        norm_first=True,
        norm_last=True,
        norm_bias=False,
        rms_norm=True,
        norm_offset=1.0,
        attention_bias=values.needed("attention_bias", SWITCH),
        gated=True,
        feed_forward_bias=(False, False),
        dropouts=Dropouts(embeddings=0.0, attended=0.0, gated=0.0, fed=0.0),
        head_size=head_size(values),
        key_value_heads=key_value_heads(values),
        norm_heads=True,
        rotary=tuple(rotary[layer_type] for layer_type in layer_types),
        windows=tuple(reach if layer_type == SLIDING else None for layer_type in layer_types),
    )


def _layer_types(values: JsonObject) -> list[str]:
    """Return the type of each layer, SLIDING or FULL. Raises ModelError for other types."""
    count = values.needed("num_hidden_layers", whole_number(1))
    layer_types = values.texts("layer_types")
    if layer_types:
        if len(layer_types) != count or not {SLIDING, FULL} >= set(layer_types):
            raise values.bad("layer_types", f"{count} of {FULL}, {SLIDING}")
        return layer_types
    every = values.integer("sliding_window_pattern", 1) or 6
    return [SLIDING if (layer + 1) % every else FULL for layer in range(count)]


def _rotary(values: JsonObject) -> dict[str, Rotary]:
    """Return the rotary positions of each layer type."""
    parameters = values.object("rope_parameters")
    theta = values.checked("rope_theta", POSITIVE) or 1_000_000.0
    local_theta = values.checked("rope_local_base_freq", POSITIVE) or 10_000.0
    scaling = values.object("rope_scaling")
    return {
        FULL: read_rotary(scaling.over(parameters.object(FULL)), theta),
        SLIDING: read_rotary(parameters.object(SLIDING), local_theta),
    }


EMBEDDING_GEMMA = Family(
    model_type="gemma3_text",
    title="EmbeddingGemma",
    classes=classes(
        "Gemma3Text",
        ForMaskedLM="",
        ForSequenceClassification="",
        ForMultipleChoice="",
        ForTokenClassification="",
        ForQuestionAnswering="",
    ),
    base="model",
    keys={
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "rms_norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    absent_fields={
        "type_vocab_size",
        "hidden_dropout_prob",
        "position_embedding_type",
        "is_decoder",
        "add_cross_attention",
        "classifier_dropout",
    },
    defaults={
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "use_bidirectional_attention": False,
    },
    structure=structure,
    tensors=(
        ("embed_tokens", "embeddings.word_embeddings"),
        *ROTARY_ATTENTION,
        ("layers.#.self_attn.q_norm", "encoder.layer.#.attention.self.query_LayerNorm"),
        ("layers.#.self_attn.k_norm", "encoder.layer.#.attention.self.key_LayerNorm"),
        ("layers.#.input_layernorm", "encoder.layer.#.attention.LayerNorm"),
        (
            "layers.#.post_attention_layernorm",
            "encoder.layer.#.attention.output.branch_LayerNorm",
        ),
        ("layers.#.pre_feedforward_layernorm", "encoder.layer.#.LayerNorm"),
        ("layers.#.post_feedforward_layernorm", "encoder.layer.#.output.branch_LayerNorm"),
        *GATED_FEED_FORWARD,
        ("norm", "encoder.LayerNorm"),
    ),
)
