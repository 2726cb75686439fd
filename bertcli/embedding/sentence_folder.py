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
    kinds = [module.kind for module in sentence.of_tokens] + ["Pooling"]
    kinds += [module.kind for module in sentence.of_texts] + ["Normalize"] * parts.normalize
    kinds = ["Transformer", *kinds, *(["Dense"] if layer else [])]
    places = [f"{at}_{kind}" if at else "" for at, kind in enumerate(kinds)]
    modules = [
        {"idx": at, "name": str(at), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]
    for place in places[1:]:
        (folder / place).mkdir()
    _put(folder / "modules.json", modules)
    pooling = 1 + len(sentence.of_tokens)
    before = zip(sentence.of_tokens, places[1:pooling], strict=True)
    behind = zip(sentence.of_texts, places[pooling + 1 :], strict=False)
    for module, place in (*before, *behind):
        _copy(base / module.path, folder / place)
    if parts.normalize:
        _put(folder / places[pooling + len(sentence.of_texts) + 1] / "config.json", {})
    limits = {"max_seq_length": parts.max_length, "do_lower_case": sentence.lower_case}
    _put(folder / "sentence_bert_config.json", limits)
    pooled: dict[str, Any] = {"word_embedding_dimension": parts.width}
    pooled |= {key: mode in parts.modes for key, mode in OURS.items()}
    pooled["include_prompt"] = sentence.include_prompt
    _put(folder / places[pooling] / "config.json", pooled)
    if (base / CONFIG).is_file():
        shutil.copyfile(base / CONFIG, folder / CONFIG)
    if layer:
        if sentence.dim:  # of vectors, and not of what the layer makes of them
            config = read_object(folder / CONFIG)
            _put(folder / CONFIG, {key: config[key] for key in config if key != "truncate_dim"})
        _write_dense(folder / places[-1], layer)


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


def _copy(source: Path, target: Path) -> None:
    """Copy the config and the weights of a module, where it has any."""
    weights = find_weights(source)
    for path in (source / "config.json", *weights.all):
        if path.is_file():
            shutil.copyfile(path, target / path.name)


def _put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
