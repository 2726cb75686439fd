"""What is told of a model at a glance, without torch: family, width, licence, whether it loads.

facts_of(find_model(DEFAULT_MODEL).path).family   # BERT
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from bertcli.checkpoints.comparison import fit
from bertcli.checkpoints.scan import STATIC, bert_folder, is_static, read_config, require_weights
from bertcli.checkpoints.tensors import read_tensors
from bertcli.errors import ModelError
from bertcli.hub import ModelFolder

LICENCES = ("license", "licence", "copying")  # how names of such files begin, in any case


@dataclass(frozen=True)
class ModelFacts:
    """A model in a line."""

    family: str = ""  # of the encoder, for people; "" where bertcli knows none
    width: int | None = None  # of its hidden states
    license: str = ""  # the file in its folder
    loads: bool = False
    problem: str = ""  # why it does not load


def facts_of(folder: Path) -> ModelFacts:
    """Look at a folder; what is wrong with it is one of the facts."""
    names = sorted(os.listdir(folder))
    found = ModelFacts(license=next((n for n in names if n.lower().startswith(LICENCES)), ""))
    try:
        if is_static(folder):
            from bertcli.inspection.static_report import inspect_static

            table = inspect_static(ModelFolder(str(folder), folder, "folder", None))
            return replace(found, family=STATIC, width=table.width, loads=True)
        place = bert_folder(folder)
        config = read_config(place)
        found = replace(found, family=config.family.title, width=config.hidden_size)
        compared = fit(config, "BertModel", read_tensors(require_weights(place)))
    except ModelError as bad:
        return replace(found, problem=str(bad))
    lost = (*compared.missing, *compared.misshapen)
    problem = f"missing, or of another shape: {lost[0]}" if lost else ""
    return replace(found, loads=not problem, problem=problem)
