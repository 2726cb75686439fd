"""DeBERTa v2 and v3: attention between tokens and relative positions, in both directions.

Source: DeBERTa: Decoding-enhanced BERT with Disentangled Attention; DeBERTaV3; the classes of this
name in transformers.
"""

from __future__ import annotations

from typing import Any

from bertcli.errors import ModelError
from bertcli.families.family import Family, classes, refuse_variants, unsupported
from bertcli.families.structure import Convolution, Disentangled, Structure, TextHead
from bertcli.io.typed_json import PROBABILITY, TEXT, JsonObject


def update_config(values: JsonObject) -> dict[str, Any]:
    """Return the content of config.json as if the masked-LM head had BERT's tensor names.

    The head of ``legacy: false`` always multiplies by the word embeddings, regardless of
    tie_word_embeddings.
    """
    if values.get("legacy") is False:
        return {**values, "legacy": True, "tie_word_embeddings": True}
    return dict(values)


def structure(values: JsonObject) -> Structure:
    """Return how DeBERTa differs from BERT.

    Raises ModelError if the embedding or pooler size differs from the hidden size, or the head size
    from the hidden size divided by the number of heads.
    """
    hidden = values["hidden_size"]
    heads = values["num_attention_heads"]
    sizes = dict.fromkeys(("embedding_size", "pooler_hidden_size"), hidden)
    refuse_variants(values, {**sizes, "attention_head_size": hidden // heads})
    if values.get("pos_att_type") and not values.switch("relative_attention"):
        raise ModelError(f"{values.source}: pos_att_type needs relative_attention")
    scores_dropout = values.checked("cls_dropout", PROBABILITY)
    if scores_dropout is None:
        scores_dropout = values["hidden_dropout_prob"]
    head = TextHead(
        pooler=False,
        activation=values.needed("pooler_hidden_act", TEXT),
        drop_first=values.needed("pooler_dropout", PROBABILITY),
        dropout=scores_dropout,
    )
    return Structure(
        absolute_positions=bool(values.switch("position_biased_input")),
        token_types=values["type_vocab_size"] > 0,
        pooler=False,
        blank_padding=True,
        convolution=_convolution(values),
        disentangled=_disentangled(values) if values.switch("relative_attention") else None,
        text_head=head,
        choice_head=head,
    )


def _convolution(values: JsonObject) -> Convolution | None:
    """Return the convolution beside the first layer. Raises ModelError for an even kernel size."""
    size = values.integer("conv_kernel_size") or 0
    if size <= 0:
        return None
    if size % 2 == 0:
        raise unsupported(values, "conv_kernel_size", "an odd number of tokens")
    groups = values.integer("conv_groups", 1) or 1
    if values["hidden_size"] % groups:
        raise values.bad("conv_groups", "a divisor of hidden_size")
    return Convolution(size, groups, values.text("conv_act") or "tanh")


def _attention_terms(values: JsonObject) -> set[str]:
    """Return the names in `pos_att_type`, a list or a text such as "p2c|c2p"."""
    terms = values.get("pos_att_type") or []
    if isinstance(terms, str):
        names = terms.lower().split("|")
    else:
        names = values.texts("pos_att_type") or []
    return {name.strip() for name in names}


def _disentangled(values: JsonObject) -> Disentangled:
    """Return the disentangled attention that config.json describes."""
    terms = _attention_terms(values)
    longest = values.integer("max_relative_positions", -1) or -1
    if longest <= 0:
        longest = values["max_position_embeddings"]
    buckets = values.integer("position_buckets", -1) or -1
    norms = (values.text("norm_rel_ebd") or "none").lower().split("|")
    return Disentangled(
        span=buckets if buckets > 0 else longest,
        longest=longest,
        buckets=buckets > 0,
        word_to_distance="c2p" in terms,
        distance_to_word="p2c" in terms,
        shared=bool(values.switch("share_att_key")),
        norm="layer_norm" in {norm.strip() for norm in norms},
    )


SELF = "encoder.layer.#.attention.self"
TEXT_HEAD_TENSORS = (("pooler.dense", "classifier_head.dense"),)
DEBERTA_V2 = Family(
    model_type="deberta-v2",
    title="DeBERTa v2 and v3",
    classes=classes("DebertaV2"),
    base="deberta",
    absent_fields={
        "position_embedding_type",
        "classifier_dropout",
        "is_decoder",
        "add_cross_attention",
    },
    defaults={
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "hidden_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "position_biased_input": True,
        "pooler_dropout": 0.0,
        "pooler_hidden_act": "gelu",
    },
    update_config=update_config,
    structure=structure,
    tensors=(
        (f"{SELF}.query_proj", f"{SELF}.query"),
        (f"{SELF}.key_proj", f"{SELF}.key"),
        (f"{SELF}.value_proj", f"{SELF}.value"),
        (f"{SELF}.pos_key_proj", f"{SELF}.distance_embedding.key"),
        (f"{SELF}.pos_query_proj", f"{SELF}.distance_embedding.query"),
        ("encoder.rel_embeddings", "encoder.relative_attention_bias.table"),
        ("encoder.LayerNorm", "encoder.relative_attention_bias.LayerNorm"),
    ),
    head_tensors={
        "BertForSequenceClassification": TEXT_HEAD_TENSORS,
        "BertForMultipleChoice": TEXT_HEAD_TENSORS,
    },
    older_tensors=(
        ("lm_predictions.lm_head.dense", "cls.predictions.transform.dense"),
        ("lm_predictions.lm_head.LayerNorm", "cls.predictions.transform.LayerNorm"),
        ("lm_predictions.lm_head", "cls.predictions"),
    ),
)
