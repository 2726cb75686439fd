"""Jina v3: XLM-RoBERTa with rotary positions instead of a position table.

Source: jina-embeddings-v3: Multilingual Embeddings With Task LoRA; the classes of this name in
transformers, whose checkpoints have the adapters merged or left out.
"""

from __future__ import annotations

from bertcli.families.family import (
    LIKE_ROBERTA,
    OLDER_NORMS,
    QKV,
    ROTARY_LAYERS,
    TEXT_HEAD_TENSORS,
    WORD_HEAD_TENSORS,
    Family,
    classes,
    rotary_per_layer,
)
from bertcli.families.structure import Structure
from bertcli.io.typed_json import JsonObject


def structure(values: JsonObject) -> Structure:
    """Return how Jina v3 differs from BERT."""
    return LIKE_ROBERTA._replace(
        absolute_positions=False, rotary=rotary_per_layer(values, 20_000.0)
    )


JINA_V3 = Family(
    model_type="jina_embeddings_v3",
    title="Jina v3",
    classes=classes("JinaEmbeddingsV3", ForMultipleChoice=""),
    base="roberta",
    absent_fields={"position_embedding_type", "is_decoder", "add_cross_attention"},
    defaults={
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
    structure=structure,
    tensors=(
        *ROTARY_LAYERS,
        ("layers.#.mlp.fc1", "encoder.layer.#.intermediate.dense"),
        ("layers.#.mlp.fc2", "encoder.layer.#.output.dense"),
        *WORD_HEAD_TENSORS,
    ),
    older_tensors=(
        *OLDER_NORMS,
        ("encoder.layers.#.mixer.out_proj", "encoder.layer.#.attention.output.dense"),
        ("encoder.layers.#.mlp.fc1", "encoder.layer.#.intermediate.dense"),
        ("encoder.layers.#.mlp.fc2", "encoder.layer.#.output.dense"),
        ("encoder.layers.#.mixer.Wqkv", QKV),
    ),
    head_tensors=TEXT_HEAD_TENSORS,
)
