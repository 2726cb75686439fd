"""Rotary positions in config.json, in the forms that transformers reads: what families share."""

from __future__ import annotations

from bertcli.errors import ModelError
from bertcli.families.structure import Rotary
from bertcli.files.typed_json import Check, JsonObject

KNOWN = ("default", "linear")
POSITIVE = Check(
    lambda value: (
        isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < 1e30
    ),
    "a number above 0",
)


def rotary(values: JsonObject, theta: float, layers: int) -> tuple[Rotary, ...]:
    """Return the rotary positions of every layer, the same in all, `theta` where none is named.

    Today's key is `rope_parameters`, older ones are `rope_scaling` and `rope_theta`.
    """
    older = values.checked("rope_theta", *POSITIVE) or theta
    said = values.object("rope_scaling") or values.object("rope_parameters")
    return (scaled(said, older),) * layers


def scaled(said: JsonObject, theta: float) -> Rotary:
    """Return the rotary positions of one object. ModelError for a kind that is unknown."""
    kind = said.text("rope_type") or said.text("type") or "default"
    if kind not in KNOWN:
        raise ModelError(
            f"{said.source}: rotary positions of the type {kind!r} are not supported",
            f"known: {', '.join(KNOWN)}",
        )
    if said.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ModelError(f"{said.source}: rotary positions of a part of each head (unsupported)")
    base: float = said.checked("rope_theta", *POSITIVE) or theta
    scaling: float = said.needed("factor", *POSITIVE) if kind == "linear" else 1.0
    return Rotary(base, scaling)
