"""ModernBERT: pre-norm, rotary positions, gates, no biases, and local attention in most layers.

Source: Smarter, Better, Faster, Longer; the classes of this name in transformers.
"""

from __future__ import annotations

from typing import Any

from bertcli.families.family import QKV, Family, classes, read_rotary
from bertcli.families.structure import Dropouts, Rotary, Structure, TextHead, WordHead
from bertcli.io.typed_json import POSITIVE, PROBABILITY, SWITCH, TEXT, JsonObject, whole_number

# Layer type -> key of its rotary base, and the default base.
ROTARY_BASES = {
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}


def update_config(values: JsonObject) -> dict[str, Any]:
    """Return the content of config.json with a rotary base for layers with local attention.

    null means the base of the other layers, as in transformers 4; version 5 cannot build such a
    model.
    """
    global_key, default = ROTARY_BASES["full_attention"]
    local_key, _ = ROTARY_BASES["sliding_attention"]
    if local_key in values and values[local_key] is None:
        return {**values, local_key: values.get(global_key) or default}
    return dict(values)


def structure(values: JsonObject) -> Structure:
    """Return how ModernBERT differs from BERT."""
    layer_types = _layer_types(values)
    rotary = _rotary(values)
    reach = values.needed("local_attention", whole_number()) // 2
    attention_bias, mlp_bias, norm_bias, head_bias, decoder_bias = (
        values.needed(f"{name}_bias", SWITCH)
        for name in ("attention", "mlp", "norm", "classifier", "decoder")
    )
    embedding_dropout, attention_dropout, mlp_dropout = (
        values.needed(f"{name}_dropout", PROBABILITY) for name in ("embedding", "attention", "mlp")
    )
    activation = values.needed("classifier_activation", TEXT)
    head = TextHead(pooler=False, activation=activation, norm=True, bias=head_bias)
    mean = values.choice("classifier_pooling", ("cls", "mean")) == "mean"
    word_head = WordHead(activation, dense_bias=head_bias, bias=decoder_bias, bias_twice=False)
    dropouts = Dropouts(
        embeddings=embedding_dropout,
        attended=attention_dropout,
        gated=mlp_dropout,
        fed=0.0,
    )
    return Structure(
        absolute_positions=False,
        token_types=False,
        pooler=False,
        norm_first=True,
        norm_bias=norm_bias,
        attention_bias=attention_bias,
        gated=True,
        feed_forward_bias=(mlp_bias, mlp_bias),
        dropouts=dropouts,
        rotary=tuple(rotary[layer_type] for layer_type in layer_types),
        windows=tuple(
            reach if layer_type == "sliding_attention" else None for layer_type in layer_types
        ),
        word_head=word_head,
        text_head=head._replace(mean=mean),
        choice_head=head._replace(mean=mean),
        token_head=head,
    )


def _layer_types(values: JsonObject) -> list[str]:
    """Return the type of each layer, a key of ROTARY_BASES. Raises ModelError for other types."""
    count = values.needed("num_hidden_layers", whole_number(1))
    layer_types = values.texts("layer_types")
    if layer_types:
        if len(layer_types) != count or not ROTARY_BASES.keys() >= set(layer_types):
            raise values.bad("layer_types", f"{count} of {', '.join(ROTARY_BASES)}")
        return layer_types
    every = values.integer("global_attn_every_n_layers", 1) or 3
    return ["sliding_attention" if layer % every else "full_attention" for layer in range(count)]


def _rotary(values: JsonObject) -> dict[str, Rotary]:
    """Return the rotary positions of each layer type."""
    parameters = values.object("rope_parameters")
    scaling = values.object("rope_scaling")
    rotary = {}
    for layer_type, (key, default) in ROTARY_BASES.items():
        theta = values.checked(key, POSITIVE) or default
        rotary[layer_type] = read_rotary(scaling.over(parameters.object(layer_type)), theta)
    return rotary


HEAD_TENSORS = (("head.dense", "classifier_head.dense"), ("head.norm", "classifier_head.LayerNorm"))
CLASSIFIER_TENSORS = (*HEAD_TENSORS, ("classifier", "classifier"))

MODERNBERT = Family(
    model_type="modernbert",
    title="ModernBERT",
    classes=classes("ModernBert"),
    base="model",
    keys={
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    absent_fields={"type_vocab_size", "hidden_dropout_prob", "position_embedding_type"},
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "pad_token_id": 50283,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "local_attention": 128,
        "embedding_dropout": 0.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_dropout": 0.0,
        "classifier_bias": False,
        "classifier_activation": "gelu",
    },
    update_config=update_config,
    structure=structure,
    tensors=(
        ("embeddings.tok_embeddings", "embeddings.word_embeddings"),
        ("embeddings.norm", "embeddings.LayerNorm"),
        ("layers.#.attn_norm", "encoder.layer.#.attention.LayerNorm"),
        ("layers.#.attn.Wo", "encoder.layer.#.attention.output.dense"),
        ("layers.#.mlp_norm", "encoder.layer.#.LayerNorm"),
        ("layers.#.mlp.Wo", "encoder.layer.#.output.dense"),
        ("final_norm", "encoder.LayerNorm"),
        ("layers.#.attn.Wqkv", QKV),
        (
            "layers.#.mlp.Wi",
            ("encoder.layer.#.intermediate.gate", "encoder.layer.#.intermediate.dense"),
        ),
    ),
    head_tensors={
        "BertForMaskedLM": (
            ("head.dense", "cls.predictions.transform.dense"),
            ("head.norm", "cls.predictions.transform.LayerNorm"),
            ("decoder", "cls.predictions.decoder"),
        ),
        "BertForSequenceClassification": CLASSIFIER_TENSORS,
        "BertForMultipleChoice": CLASSIFIER_TENSORS,
        "BertForTokenClassification": CLASSIFIER_TENSORS,
        "BertForQuestionAnswering": (*HEAD_TENSORS, ("classifier", "qa_outputs")),
    },
)
