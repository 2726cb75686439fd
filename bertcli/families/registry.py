"""All families by the `model_type` of config.json, including BERT itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertcli.errors import ModelError
from bertcli.families.albert import ALBERT
from bertcli.families.deberta import DEBERTA_V2
from bertcli.families.distilbert import DISTILBERT
from bertcli.families.electra import ELECTRA
from bertcli.families.family import Family
from bertcli.families.gte import GTE, NEW
from bertcli.families.jina import JINA_V3
from bertcli.families.modernbert import MODERNBERT
from bertcli.families.mpnet import MPNET
from bertcli.families.nomic import NOMIC_BERT
from bertcli.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from bertcli.families.structure import HEAD_PARTS

ELECTRAS = "BertForReplacedTokens"  # transformers has this head only for ELECTRA
BERT = Family("bert", "BERT", classes={name: name for name in HEAD_PARTS if name != ELECTRAS})

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
    )
}


def family_of(raw: Mapping[str, Any], source: str) -> Family:
    """Return the family of config.json's content. Raises ModelError, with `source`, if unknown.

    Google's bert_config.json has no model_type; the architecture's name decides then.
    """
    named = (raw.get("architectures") or ["Bert"])[0]
    kind = raw.get("model_type")
    if kind is None:
        page = next((page for page in FAMILIES.values() if named in page.classes), None)
        kind = page.model_type if page else "bert" if named.startswith("Bert") else named
    if kind in FAMILIES:
        return FAMILIES[kind]
    families = ", ".join(page.title for page in FAMILIES.values())
    hint = f"choose a folder whose config.json has a model_type of {', '.join(FAMILIES)}"
    raise ModelError(f"{source}: this is a {kind} model; bertcli supports {families}", hint)
