"""GTE: BERT with rotary positions and gated layers. Current files are `gte`, Alibaba's are `new`.

Source: mGTE: Generalized Long-Context Text Representation and Reranking Models; the classes of this
name in transformers, and for `new` the code distributed with the files.
"""

from __future__ import annotations

from bertcli.errors import ModelError
from bertcli.families.family import (
    QKV,
    ROTARY_LAYERS,
    Family,
    classes,
    refuse_variants,
    rotary_per_layer,
)
from bertcli.families.structure import Dropouts, Rotary, Structure, WordHead
from bertcli.io.typed_json import POSITIVE, JsonObject

GATE = "encoder.layer.#.intermediate.gate"
UP = "encoder.layer.#.intermediate.dense"


def structure(values: JsonObject) -> Structure:
    """Return how GTE differs from BERT."""
    return Structure(
        absolute_positions=False,
        token_types=values["type_vocab_size"] > 0,
        gated=True,
        feed_forward_bias=(False, True),
        dropouts=Dropouts(gated=values["hidden_dropout_prob"]),
        rotary=rotary_per_layer(values, 160_000.0),
        word_head=WordHead(activation="gelu", bias_twice=False),
    )


def new_structure(values: JsonObject) -> Structure:
    """Return how Alibaba's `new` differs from BERT. Raises ModelError for unsupported values."""
    refuse_variants(values, SUPPORTED_VALUES)
    scaling = values.object("rope_scaling")
    if scaling.get("type") != "ntk":
        return structure(values)
    if scaling.get("mixed_b") is not None:
        raise ModelError(f"{values.source}: rope_scaling with mixed_b is not supported")
    factor = scaling.needed("factor", POSITIVE)
    theta = values.checked("rope_theta", POSITIVE) or 10_000.0
    head_size = values["hidden_size"] // values["num_attention_heads"]
    ntk_rotary = Rotary(theta * factor, factor ** (2 / head_size))
    unscaled = JsonObject({**values, "rope_scaling": None}, values.source)
    return structure(unscaled)._replace(rotary=(ntk_rotary,) * values["num_hidden_layers"])


# The only supported values of these keys in Alibaba's files: the behaviour of GTE.
SUPPORTED_VALUES = {
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
}
DEFAULTS = {
    "vocab_size": 250048,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.0,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "max_position_embeddings": 8192,
}
HEAD_TENSORS = (
    ("lm_head.dense", "cls.predictions.transform.dense"),
    ("lm_head.layer_norm", "cls.predictions.transform.LayerNorm"),
    ("lm_head.decoder", "cls.predictions.decoder"),
)
# Names in `new` files, and in `gte` files saved by transformers.
NEW_TENSORS = (
    ("encoder.layer.#.attention.o_proj", "encoder.layer.#.attention.output.dense"),
    ("encoder.layer.#.attn_ln", "encoder.layer.#.attention.output.LayerNorm"),
    ("encoder.layer.#.mlp.down_proj", "encoder.layer.#.output.dense"),
    ("encoder.layer.#.mlp_ln", "encoder.layer.#.output.LayerNorm"),
    ("lm_head.norm", "cls.predictions.transform.LayerNorm"),
)
STACKED_TENSORS = (
    ("encoder.layer.#.attention.qkv_proj", QKV),
    ("encoder.layer.#.mlp.up_gate_proj", (UP, GATE)),
)

GTE = Family(
    model_type="gte",
    title="GTE",
    classes=classes("Gte", ForMultipleChoice="", ForQuestionAnswering=""),
    base="gte",
    absent_fields={"position_embedding_type", "is_decoder", "add_cross_attention", "use_cache"},
    defaults=DEFAULTS,
    structure=structure,
    tensors=(
        *ROTARY_LAYERS,
        ("layers.#.mlp.gate_proj", GATE),
        ("layers.#.mlp.up_proj", UP),
        ("layers.#.mlp.down_proj", "encoder.layer.#.output.dense"),
        *HEAD_TENSORS,
    ),
    older_tensors=(*NEW_TENSORS, *STACKED_TENSORS),
)
NEW = GTE._replace(
    model_type="new",
    title="GTE as Alibaba has it",
    classes=classes("New", ForMultipleChoice="", ForQuestionAnswering=""),
    base="new",
    defaults={**DEFAULTS, "vocab_size": 30528, "pad_token_id": 0, "rope_theta": 10_000.0},
    structure=new_structure,
    tensors=(*NEW_TENSORS, *STACKED_TENSORS, *HEAD_TENSORS),
    older_tensors=(),
)
