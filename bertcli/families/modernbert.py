"""ModernBERT: pre-norm, rotary positions, gates, no biases, and local attention in most layers.

Source: Smarter, Better, Faster, Longer; the classes of this name in transformers.
"""

from __future__ import annotations

from typing import Any

from bertcli.families.family import QKV, Family, classes, scaled
from bertcli.families.structure import Dropouts, Rotary, Structure, TextHead, WordHead
from bertcli.io.typed_json import POSITIVE, PROBABILITY, SWITCH, TEXT, JsonObject, whole_number

# Layer type -> the key of its rotary base, and the default base.
KINDS = {
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}


def renewed(values: JsonObject) -> dict[str, Any]:
    """Return config.json with a rotary base for layers with local attention.

    null means the base of the other layers, as in transformers 4; version 5 cannot build such a
    model.
    """
    (base, default), (window_base, _) = KINDS.values()
    if window_base in values and values[window_base] is None:
        return {**values, window_base: values.get(base) or default}
    return dict(values)


def structure(values: JsonObject) -> Structure:
    """Return how ModernBERT differs from BERT."""
    kinds = _kinds(values)
    rotary = _rotary(values)
    reach = values.needed("local_attention", whole_number()) // 2
    attention, mlp, norm, dense, decoder = (
        values.needed(f"{part}_bias", SWITCH)
        for part in ("attention", "mlp", "norm", "classifier", "decoder")
    )
    embeddings, attended, gated = (
        values.needed(f"{part}_dropout", PROBABILITY) for part in ("embedding", "attention", "mlp")
    )
    act = values.needed("classifier_activation", TEXT)
    head = TextHead(pooler=False, activation=act, norm=True, bias=dense)
    mean = values.choice("classifier_pooling", ("cls", "mean")) == "mean"
    return Structure(
        absolute_positions=False,
        token_types=False,
        pooler=False,
        norm_first=True,
        norm_bias=norm,
        attention_bias=attention,
        gated=True,
        feed_forward_bias=(mlp, mlp),
        dropouts=Dropouts(embeddings, attended, gated, fed=0.0),
        rotary=tuple(rotary[kind] for kind in kinds),
        windows=tuple(reach if kind == "sliding_attention" else None for kind in kinds),
        word_head=WordHead(act, dense_bias=dense, bias=decoder, bias_twice=False),
        text_head=head._replace(mean=mean),
        choice_head=head._replace(mean=mean),
        token_head=head,
    )


def _kinds(values: JsonObject) -> list[str]:
    layers = values.needed("num_hidden_layers", whole_number(1))
    if kinds := values.texts("layer_types"):
        for kind in kinds:
            if kind not in KINDS or len(kinds) != layers:
                raise values.bad("layer_types", f"{layers} of {', '.join(KINDS)}")
        return kinds
    every = values.whole("global_attn_every_n_layers", 1) or 3
    return ["sliding_attention" if layer % every else "full_attention" for layer in range(layers)]


def _rotary(values: JsonObject) -> dict[str, Rotary]:
    parameters = values.object("rope_parameters")
    scaling = values.object("rope_scaling")
    bases = {}
    for kind, (key, theta) in KINDS.items():
        base = values.checked(key, POSITIVE) or theta
        bases[kind] = scaled(scaling.over(parameters.object(kind)), base)
    return bases


HEAD = (("head.dense", "classifier_head.dense"), ("head.norm", "classifier_head.LayerNorm"))
JUDGE = (*HEAD, ("classifier", "classifier"))

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
    lacks={"type_vocab_size", "hidden_dropout_prob", "position_embedding_type"},
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
    renewed=renewed,
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
    heads={
        "BertForMaskedLM": (
            ("head.dense", "cls.predictions.transform.dense"),
            ("head.norm", "cls.predictions.transform.LayerNorm"),
            ("decoder", "cls.predictions.decoder"),
        ),
        "BertForSequenceClassification": JUDGE,
        "BertForMultipleChoice": JUDGE,
        "BertForTokenClassification": JUDGE,
        "BertForQuestionAnswering": (*HEAD, ("classifier", "qa_outputs")),
    },
)
