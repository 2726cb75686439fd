"""Writing the folder of a sentence model, which bertcli and sentence-transformers read.

What is read of such folders is in `sentence_config`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertcli.embedding.dense import Dense, write_dense
from bertcli.embedding.sentence_config import CONFIG, OURS


@dataclass(frozen=True)
class SentenceParts:
    """What makes a vector of the states of a BERT."""

    modes: tuple[str, ...]
    normalize: bool
    max_length: int
    width: int  # of a state
    lower_case: bool = False
    include_prompt: bool = True


def write_sentence_parts(
    folder: Path, parts: SentenceParts, base: Path, layer: Dense | None = None
) -> None:
    """Write what makes a sentence model of the BERT in a folder, with this layer at its end.

    Prompts are those of ``base``.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if parts.normalize else [])]
    kinds += ["Dense"] if layer else []
    paths = {kind: f"{at}_{kind}" if at else "" for at, kind in enumerate(kinds)}
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(paths.items())
    ]
    for path in filter(None, paths.values()):
        (folder / path).mkdir()
    _put(folder / "modules.json", modules)
    if parts.normalize:
        _put(folder / paths["Normalize"] / "config.json", {})
    limits = {"max_seq_length": parts.max_length, "do_lower_case": parts.lower_case}
    _put(folder / "sentence_bert_config.json", limits)
    pooled: dict[str, Any] = {"word_embedding_dimension": parts.width}
    pooled |= {key: mode in parts.modes for key, mode in OURS.items()}
    pooled["include_prompt"] = parts.include_prompt
    _put(folder / paths["Pooling"] / "config.json", pooled)
    if (base / CONFIG).is_file():
        shutil.copyfile(base / CONFIG, folder / CONFIG)
    if layer:
        write_dense(folder / paths["Dense"], layer)


def _put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
