"""What families with rotary positions share: how config.json says them, how layers are called."""

from __future__ import annotations

from bertcli.families.family import QKV, unsupported
from bertcli.families.structure import Rotary
from bertcli.files.typed_json import POSITIVE, JsonObject

KNOWN = ("default", "linear")
# Tensors of a layer as newer models of transformers call them.
LAYERS = (
    *((f"layers.#.self_attn.{theirs}_proj", ours) for theirs, ours in zip("qkv", QKV, strict=True)),
    ("layers.#.self_attn.o_proj", "encoder.layer.#.attention.output.dense"),
    ("layers.#.post_attention_layernorm", "encoder.layer.#.attention.output.LayerNorm"),
    ("layers.#.post_mlp_layernorm", "encoder.layer.#.output.LayerNorm"),
)
# As their files called them before.
OLDER_NORMS = (
    ("emb_ln", "embeddings.LayerNorm"),
    ("encoder.layers.#.norm1", "encoder.layer.#.attention.output.LayerNorm"),
    ("encoder.layers.#.norm2", "encoder.layer.#.output.LayerNorm"),
)


def rotary(values: JsonObject, theta: float, layers: int) -> tuple[Rotary, ...]:
    """Return the rotary positions of every layer, the same in all, `theta` where none is named.

    Today's key is `rope_parameters`, older ones are `rope_scaling` and `rope_theta`. ModelError for
    heads that are not as wide as the hidden size divided by them.
    """
    size, heads = values.whole("head_dim", 1), values["num_attention_heads"]
    if size is not None and size * heads != values.get("hidden_size", 768):
        raise values.bad("head_dim", "the hidden size divided by the heads")
    older = values.checked("rope_theta", *POSITIVE) or theta
    scaling_settings = values.object("rope_scaling") or values.object("rope_parameters")
    return (scaled(scaling_settings, older),) * layers


def scaled(scaling_settings: JsonObject, theta: float) -> Rotary:
    """Return the rotary positions of one object. ModelError for a kind that is unknown."""
    kind = scaling_settings.text("rope_type") or scaling_settings.text("type") or "default"
    if kind not in KNOWN:
        key = "rope_type" if scaling_settings.text("rope_type") else "type"
        raise unsupported(scaling_settings, key, " and ".join(KNOWN))
    if scaling_settings.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise unsupported(scaling_settings, "partial_rotary_factor", "1")
    base: float = scaling_settings.checked("rope_theta", *POSITIVE) or theta
    scaling: float = scaling_settings.needed("factor", *POSITIVE) if kind == "linear" else 1.0
    return Rotary(base, scaling)
