"""MPNet: absolute positions and one table of relative positions for all layers; no token types.

Positions start after the padding id, as in RoBERTa. Source: MPNet: Masked and Permuted
Pre-training for Language Understanding; the classes of this name in transformers.
"""

from __future__ import annotations

from bertcli.families.family import (
    LIKE_ROBERTA,
    TEXT_HEAD_TENSORS,
    WORD_HEAD_TENSORS,
    Family,
    classes,
    unsupported,
)
from bertcli.families.structure import Structure
from bertcli.io.typed_json import JsonObject, whole_number

PADDING = 1  # positions start after this id, whatever pad_token_id is
BUCKETS = 32  # number of distance buckets, whatever the size of the table is


def structure(values: JsonObject) -> Structure:
    """Return how MPNet differs from BERT. Raises ModelError for a table with too few rows."""
    buckets: int = values.needed("relative_attention_num_buckets", whole_number())
    if buckets < BUCKETS:
        raise unsupported(values, "relative_attention_num_buckets", f"{BUCKETS} or more")
    return LIKE_ROBERTA._replace(first_position=PADDING + 1, token_types=False, buckets=buckets)


MPNET = Family(
    model_type="mpnet",
    title="MPNet",
    classes=classes("MPNet"),
    base="mpnet",
    absent_fields={"type_vocab_size", "classifier_dropout", "position_embedding_type"},
    defaults={"vocab_size": 30527, "pad_token_id": 1, "relative_attention_num_buckets": BUCKETS},
    structure=structure,
    tensors=(
        ("encoder.layer.#.attention.attn.q", "encoder.layer.#.attention.self.query"),
        ("encoder.layer.#.attention.attn.k", "encoder.layer.#.attention.self.key"),
        ("encoder.layer.#.attention.attn.v", "encoder.layer.#.attention.self.value"),
        ("encoder.layer.#.attention.attn.o", "encoder.layer.#.attention.output.dense"),
        ("encoder.layer.#.attention.LayerNorm", "encoder.layer.#.attention.output.LayerNorm"),
        *WORD_HEAD_TENSORS,
    ),
    head_tensors=TEXT_HEAD_TENSORS,
)
