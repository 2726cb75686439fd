"""ALBERT: small embedding tables, and few layers that are used repeatedly.

Source: ALBERT: A Lite BERT for Self-supervised Learning of Language Representations, section 3.1;
the classes of this name in transformers.
"""

from __future__ import annotations

from bertcli.families.family import Family, classes, refuse_variants
from bertcli.families.structure import Dropouts, Structure
from bertcli.io.typed_json import JsonObject, whole_number

LAYER = "encoder.albert_layer_groups.#.albert_layers.0"  # groups have one layer in all models


def structure(values: JsonObject) -> Structure:
    """Return how ALBERT differs from BERT. Raises ModelError for groups of several layers."""
    count: int = values["num_hidden_layers"]
    groups: int = values.needed("num_hidden_groups", whole_number(1, max(count, 1)))
    refuse_variants(values, {"inner_group_num": 1})
    return Structure(
        embedding_size=values.needed("embedding_size", whole_number(1)),
        layer_groups=tuple(int(layer / (count / groups)) for layer in range(count)),
        dropouts=Dropouts(fed=0.0),
    )


ALBERT = Family(
    model_type="albert",
    title="ALBERT",
    classes=classes("Albert", ForPreTraining="BertForPreTraining"),
    base="albert",
    keys={"classifier_dropout": "classifier_dropout_prob"},
    defaults={
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
    },
    structure=structure,
    tensors=(
        ("encoder.embedding_hidden_mapping_in", "embeddings.project"),
        (f"{LAYER}.attention.query", "encoder.layer.#.attention.self.query"),
        (f"{LAYER}.attention.key", "encoder.layer.#.attention.self.key"),
        (f"{LAYER}.attention.value", "encoder.layer.#.attention.self.value"),
        (f"{LAYER}.attention.dense", "encoder.layer.#.attention.output.dense"),
        (f"{LAYER}.attention.LayerNorm", "encoder.layer.#.attention.output.LayerNorm"),
        (f"{LAYER}.ffn", "encoder.layer.#.intermediate.dense"),
        (f"{LAYER}.ffn_output", "encoder.layer.#.output.dense"),
        (f"{LAYER}.full_layer_layer_norm", "encoder.layer.#.output.LayerNorm"),
        ("pooler", "pooler.dense"),
        ("predictions.dense", "cls.predictions.transform.dense"),
        ("predictions.LayerNorm", "cls.predictions.transform.LayerNorm"),
        ("predictions", "cls.predictions"),
        ("sop_classifier.classifier", "cls.seq_relationship"),
    ),
)
