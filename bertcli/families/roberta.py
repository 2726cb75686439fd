"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with better training and without sentence pairs.

Positions start after the padding id; heads for texts have two layers and no pooler. Source:
RoBERTa: A Robustly Optimized BERT Pretraining Approach; fairseq's make_positions; the classes of
these names in transformers.
"""

from __future__ import annotations

from bertcli.families.family import (
    LIKE_ROBERTA,
    TEXT_HEAD_TENSORS,
    WORD_HEAD_TENSORS,
    Family,
    classes,
)
from bertcli.families.structure import Structure
from bertcli.io.typed_json import JsonObject, whole_number


def structure(values: JsonObject) -> Structure:
    """Return how RoBERTa differs from BERT. Raises ModelError without a padding token id."""
    padding: int = values.needed("pad_token_id", whole_number())
    return LIKE_ROBERTA._replace(first_position=padding + 1)


ROBERTA = Family(
    model_type="roberta",
    title="RoBERTa",
    classes=classes("Roberta", ForCausalLM="BertLMHeadModel"),
    base="roberta",
    defaults={"vocab_size": 50265, "pad_token_id": 1},
    structure=structure,
    tensors=WORD_HEAD_TENSORS,
    head_tensors=TEXT_HEAD_TENSORS,
)
XLM_ROBERTA = ROBERTA._replace(
    model_type="xlm-roberta",
    title="XLM-RoBERTa",
    classes=classes("XLMRoberta", ForCausalLM="BertLMHeadModel"),
    defaults={"pad_token_id": 1},
)
CAMEMBERT = XLM_ROBERTA._replace(
    model_type="camembert",
    title="CamemBERT",
    classes=classes("Camembert", ForCausalLM="BertLMHeadModel"),
)
