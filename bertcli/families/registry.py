"""All families by the `model_type` of config.json, including BERT itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertcli.errors import ModelError
from bertcli.families.albert import ALBERT
from bertcli.families.deberta import DEBERTA_V2
from bertcli.families.distilbert import DISTILBERT
from bertcli.families.electra import ELECTRA
from bertcli.families.eurobert import EUROBERT
from bertcli.families.family import Family
from bertcli.families.gemma import EMBEDDING_GEMMA
from bertcli.families.gte import GTE, NEW
from bertcli.families.jina import JINA_V3
from bertcli.families.modernbert import MODERNBERT
from bertcli.families.mpnet import MPNET
from bertcli.families.nomic import NOMIC_BERT
from bertcli.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from bertcli.families.structure import HEAD_PARTS

ELECTRA_ONLY = "BertForReplacedTokens"  # transformers has this head only for ELECTRA
BERT_CLASSES = {name: name for name in HEAD_PARTS if name != ELECTRA_ONLY}
BERT = Family("bert", "BERT", classes=BERT_CLASSES)

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        CAMEMBERT,
        DISTILBERT,
        ELECTRA,
        ALBERT,
        MPNET,
        MODERNBERT,
        NOMIC_BERT,
        GTE,
        NEW,
        JINA_V3,
        DEBERTA_V2,
        EUROBERT,
        EMBEDDING_GEMMA,
    )
}


def family_of(raw: Mapping[str, Any], source: str) -> Family:
    """Return the family of config.json's content. Raises ModelError, with `source`, if unknown.

    Google's bert_config.json has no model_type; the name of the architecture is used then.
    """
    model_type = raw.get("model_type")
    if model_type is None:
        model_type = _model_type_of((raw.get("architectures") or ["Bert"])[0])
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    titles = ", ".join(family.title for family in FAMILIES.values())
    hint = f"choose a folder whose config.json has a model_type of {', '.join(FAMILIES)}"
    raise ModelError(f"{source}: this is a {model_type} model; bertcli supports {titles}", hint)


def _model_type_of(architecture: str) -> str:
    """Return the model type of a class of transformers; an unknown name is returned unchanged."""
    for family in FAMILIES.values():
        if architecture in family.classes:
            return family.model_type
    return "bert" if architecture.startswith("Bert") else architecture
