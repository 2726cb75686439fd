"""NomicBERT: BERT with rotary positions, gates and no biases in linear layers.

Source: Nomic Embed: Training a Reproducible Long Context Text Embedder; the classes of this name in
transformers, and for older files the code distributed with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertcli.families.family import (
    GATED_FEED_FORWARD,
    OLDER_NORMS,
    QKV,
    ROTARY_LAYERS,
    Family,
    classes,
    refuse_variants,
    rotary_per_layer,
)
from bertcli.families.structure import Structure
from bertcli.io.typed_json import JsonObject

# Key of older files by nomic-ai -> current key.
OLDER_KEYS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
}
GATE_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu"}
# The only supported values of these keys in older files.
SUPPORTED_VALUES: Mapping[str, Any] = {
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "prenorm": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "num_experts": 0,
}


def update_config(values: JsonObject) -> dict[str, Any]:
    """Return the content of config.json with current keys.

    Raises ModelError for an unsupported network.
    """
    refuse_variants(values, SUPPORTED_VALUES)
    renamed = {key: value for key, value in values.items() if key not in SUPPORTED_VALUES}
    for older_key, key in OLDER_KEYS.items():
        if older_key in renamed:
            renamed.setdefault(key, renamed.pop(older_key))
    if gate := renamed.pop("activation_function", None):
        values.choice("activation_function", tuple(GATE_ACTIVATIONS))
        renamed["hidden_act"] = GATE_ACTIVATIONS[gate]
    return renamed


def structure(values: JsonObject) -> Structure:
    """Return how NomicBERT differs from BERT."""
    return Structure(
        absolute_positions=False,
        attention_bias=False,
        gated=True,
        feed_forward_bias=(False, False),
        rotary=rotary_per_layer(values, 1000.0),
    )


NOMIC_BERT = Family(
    model_type="nomic_bert",
    title="NomicBERT",
    classes=classes("NomicBert", ForMultipleChoice="", ForQuestionAnswering=""),
    base="nomic_bert",
    absent_fields={"position_embedding_type", "is_decoder", "add_cross_attention", "use_cache"},
    defaults={
        "vocab_size": 30528,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 2048,
    },
    update_config=update_config,
    structure=structure,
    tensors=(
        *ROTARY_LAYERS,
        *GATED_FEED_FORWARD,
        ("cls.predictions.transform.layer_norm", "cls.predictions.transform.LayerNorm"),
    ),
    older_tensors=(
        *OLDER_NORMS,
        ("encoder.layers.#.attn.out_proj", "encoder.layer.#.attention.output.dense"),
        ("encoder.layers.#.mlp.fc12", "encoder.layer.#.intermediate.gate"),
        ("encoder.layers.#.mlp.fc11", "encoder.layer.#.intermediate.dense"),
        ("encoder.layers.#.mlp.fc2", "encoder.layer.#.output.dense"),
        ("encoder.layers.#.attn.Wqkv", QKV),
    ),
)
