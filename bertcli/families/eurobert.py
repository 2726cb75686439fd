"""EuroBERT: the network of Llama without its causal mask.

Pre-norm with RMSNorm, rotary positions, gates, keys and values that heads may share. It is also the
network of jina-embeddings-v5-text-nano. Source:
EuroBERT: Scaling Multilingual Encoders for European Languages; the classes of this name in
transformers, and for older files the code distributed with them.
"""

from __future__ import annotations

from typing import Any

from bertcli.families.family import (
    GATED_FEED_FORWARD,
    ROTARY_ATTENTION,
    Family,
    classes,
    equal_rotary,
    head_size,
    key_value_heads,
)
from bertcli.families.structure import Dropouts, Structure, TextHead, WordHead
from bertcli.io.typed_json import SWITCH, JsonObject

POOLINGS = ("bos", "mean", "late")  # of the head for texts: first token, mean, mean of logits


def update_config(values: JsonObject) -> dict[str, Any]:
    """Return the content of config.json with the current name of the pooling."""
    updated = dict(values)
    if "clf_pooling" in updated:
        updated.setdefault("classifier_pooling", updated.pop("clf_pooling"))
    return updated


def structure(values: JsonObject) -> Structure:
    """Return how EuroBERT differs from BERT."""
    mlp_bias = values.needed("mlp_bias", SWITCH)
    pooling = values.choice("classifier_pooling", POOLINGS)
    head = TextHead(
        pooler=False,
        activation="gelu",
        mean=pooling != "bos",
        late=pooling == "late",
        dropout=0.0,
    )
    return Structure(
        absolute_positions=False,
        token_types=False,
        embedding_norm=False,
        pooler=False,
        norm_first=True,
        norm_bias=False,
        rms_norm=True,
        attention_bias=values.needed("attention_bias", SWITCH),
        gated=True,
        feed_forward_bias=(mlp_bias, mlp_bias),
        dropouts=Dropouts(embeddings=0.0, attended=0.0, gated=0.0, fed=0.0),
        head_size=head_size(values),
        key_value_heads=key_value_heads(values),
        rotary=equal_rotary(values, 10_000.0),
        word_head=WordHead(transform=False, bias=mlp_bias, bias_twice=False),
        text_head=head,
    )


EUROBERT = Family(
    model_type="eurobert",
    title="EuroBERT",
    classes=classes("EuroBert", ForMultipleChoice="", ForQuestionAnswering=""),
    base="model",
    keys={
        "layer_norm_eps": "rms_norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    absent_fields={
        "type_vocab_size",
        "hidden_dropout_prob",
        "position_embedding_type",
        "is_decoder",
        "add_cross_attention",
    },
    defaults={
        "vocab_size": 128256,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 128001,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "classifier_dropout": 0.0,
        "classifier_pooling": "late",
    },
    update_config=update_config,
    structure=structure,
    tensors=(
        ("embed_tokens", "embeddings.word_embeddings"),
        *ROTARY_ATTENTION,
        ("layers.#.input_layernorm", "encoder.layer.#.attention.LayerNorm"),
        ("layers.#.post_attention_layernorm", "encoder.layer.#.LayerNorm"),
        *GATED_FEED_FORWARD,
        ("norm", "encoder.LayerNorm"),
    ),
    head_tensors={
        "BertForMaskedLM": (("lm_head", "cls.predictions.decoder"),),
        "BertForSequenceClassification": (("dense", "classifier_head.dense"),),
    },
)
