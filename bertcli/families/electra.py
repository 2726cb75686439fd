"""ELECTRA: BERT with small embedding tables, no pooler, and its own heads.

The generator replaces words; the discriminator detects replaced words. Source: ELECTRA:
Pre-training Text Encoders as Discriminators Rather Than Generators; the classes of this name in
transformers.
"""

from __future__ import annotations

from bertcli.families.family import TEXT_HEAD_TENSORS, Family, classes, refuse_variants
from bertcli.families.structure import Structure, TextHead, WordHead
from bertcli.io.typed_json import PROBABILITY, JsonObject, whole_number


def structure(values: JsonObject) -> Structure:
    """Return how ELECTRA differs from BERT. Raises ModelError for an unsupported summary."""
    width: int = values.needed("embedding_size", whole_number(1))
    refuse_variants(values, {"summary_type": "first", "summary_use_proj": True})
    return Structure(
        embedding_size=width if width != values["hidden_size"] else None,
        pooler=False,
        word_head=WordHead(activation="gelu", bias_twice=False),
        text_head=TextHead(pooler=False, activation="gelu", drop_first=None),
        choice_head=TextHead(
            pooler=False,
            activation=values.text("summary_activation") or "linear",
            dropout=values.checked("summary_last_dropout", PROBABILITY),
        ),
    )


ELECTRA = Family(
    model_type="electra",
    title="ELECTRA",
    classes=classes(
        "Electra", ForPreTraining="BertForReplacedTokens", ForCausalLM="BertLMHeadModel"
    ),
    base="electra",
    defaults={
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    },
    structure=structure,
    tensors=(
        ("embeddings_project", "embeddings.project"),
        ("generator_predictions.dense", "cls.predictions.transform.dense"),
        ("generator_predictions.LayerNorm", "cls.predictions.transform.LayerNorm"),
        ("generator_lm_head", "cls.predictions.decoder"),
    ),
    head_tensors={
        **TEXT_HEAD_TENSORS,
        "BertForMultipleChoice": (("sequence_summary.summary", "classifier_head.dense"),),
    },
)
