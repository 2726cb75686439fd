"""Writing the folder of a sentence model, which bertcli and sentence-transformers read.

What is read of such folders is in `sentence_config`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertcli.checkpoints.scan import find_weights
from bertcli.embedding.sentence_config import CONFIG, OURS, Sentence
from bertcli.embedding.sentence_modules import Dense
from bertcli.files.safetensors import write_arrays
from bertcli.files.typed_json import read_object

IDENTITY = "torch.nn.modules.linear.Identity"


@dataclass(frozen=True)
class SentenceParts:
    """What makes a vector of the states of a BERT."""

    modes: tuple[str, ...]
    normalize: bool
    max_length: int
    width: int  # of a state
    sentence: Sentence  # of another folder, whose further modules are copied


def write_sentence_parts(
    folder: Path, parts: SentenceParts, base: Path, layer: Dense | None = None
) -> None:
    """Write what makes a sentence model of the BERT in a folder, with this layer at its end.

    Prompts and further modules are those of ``base``.
    """
    sentence = parts.sentence
    pooling: dict[str, Any] = {"word_embedding_dimension": parts.width}
    pooling |= {key: mode in parts.modes for key, mode in OURS.items()}
    pooling["include_prompt"] = sentence.include_prompt
    chain: list[tuple[str, Path | Dense | dict[str, Any]]] = [("Transformer", base)]
    chain += [(module.kind, base / module.path) for module in sentence.of_tokens]
    chain += [("Pooling", pooling)]
    chain += [(module.kind, base / module.path) for module in sentence.of_texts]
    chain += [("Normalize", {})] * parts.normalize
    chain += [("Dense", layer)] if layer else []
    modules = []
    for at, (kind, content) in enumerate(chain):
        name = f"{at}_{kind}" if at else ""
        place, kind = folder / name, f"sentence_transformers.models.{kind}"
        modules.append({"idx": at, "name": str(at), "path": name, "type": kind})
        if not at:
            continue
        place.mkdir()
        if isinstance(content, Dense):
            _write_dense(place, content)
        elif isinstance(content, dict):
            _put(place / "config.json", content)
        else:
            for path in (content / "config.json", *find_weights(content).all):
                if path.is_file():
                    shutil.copyfile(path, place / path.name)
    _put(folder / "modules.json", modules)
    limits = {"max_seq_length": parts.max_length, "do_lower_case": sentence.lower_case}
    _put(folder / "sentence_bert_config.json", limits)
    if (base / CONFIG).is_file():
        shutil.copyfile(base / CONFIG, folder / CONFIG)
    if layer and sentence.dim:  # of vectors, and not of what the layer makes of them
        config = read_object(folder / CONFIG)
        _put(folder / CONFIG, {key: config[key] for key in config if key != "truncate_dim"})


def _write_dense(folder: Path, layer: Dense) -> None:
    """Write a layer without an activation that sentence-transformers reads as well."""
    config = {
        "in_features": layer.takes,
        "out_features": layer.width,
        "bias": layer.bias is not None,
        "activation_function": IDENTITY,
    }
    _put(folder / "config.json", config)
    tensors = {"linear.weight": layer.weight}
    if layer.bias is not None:
        tensors["linear.bias"] = layer.bias
    with (folder / "model.safetensors").open("wb") as file:
        write_arrays(file, tensors)


def _put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
