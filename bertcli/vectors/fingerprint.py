"""What vectors depend on: the records, the files of the model, its config, the options.

A run is resumed, and a corpus searched, only where all of these are as they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints.scan import bert_folder, find_weights, tokenizer_files
from bertcli.families.structure import BERT
from bertcli.files.digests import sha256
from bertcli.models.config import BertConfig
from bertcli.records.records import Record
from bertcli.records.text_block import TextBlock

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder

DIGEST_BYTES = 16  # of a text

# Keys of config.json that change the numbers of the same weights; what else does is an option.
NUMBERS = (
    "hidden_act",
    "is_decoder",
    "layer_norm_eps",
    "num_attention_heads",
    "num_hidden_layers",
    "position_embedding_type",
)


class TextDigests:
    """Digests of texts for one way to make vectors of them, which ``made_by`` describes."""

    def __init__(self, made_by: Mapping[str, Any], extra: Sequence[str] = ()) -> None:
        """Take what the vectors are made by, and the ``extra`` fields that they depend on."""
        text = json.dumps(made_by, sort_keys=True)
        self.key, self.extra = hashlib.sha256(text.encode(errors="surrogatepass")), extra

    def of(self, records: Sequence[Record]) -> list[bytes]:
        """Return the digest of each record's text, pair, and extra fields."""
        block = TextBlock.of(records)
        found = []
        extras = ({} if one is None else one for one in block.extras or repeat(None))
        rows = zip(block.texts, block.pairs or repeat(None), extras, strict=False)
        for text, pair, extra in rows:
            one = self.key.copy()
            also = (extra.get(name) for name in self.extra)
            one.update(repr((text, pair, *also)).encode(errors="surrogatepass"))
            found.append(one.digest()[:DIGEST_BYTES])
        return found


@dataclass
class InputDigest:
    """The sha256 of the records so far, so that a changed input is noticed on resuming.

    ``texts`` is that of the texts and pairs alone, whatever else was read with them; ``each`` are
    those of every text, if they are asked for.
    """

    of_texts: TextDigests | None = None

    sha: Any = field(default_factory=hashlib.sha256)
    texts: Any = field(default_factory=hashlib.sha256)
    each: bytearray = field(default_factory=bytearray)
    records: int = 0

    def add(self, records: Sequence[Record]) -> None:
        """Take in records, as they were read: the repr of (id, text, pair, extra) of each."""
        block = TextBlock.of(records)
        pairs, texts = map(repr, block.pairs or repeat(None)), [*map(repr, block.texts)]
        both = [f"{text}, {pair}" for text, pair in zip(texts, pairs, strict=False)]
        ids, extras = (map(repr, some or repeat(None)) for some in (block.ids, block.extras))
        rows = zip(ids, both, extras, strict=False)
        self.sha.update(
            "".join([f"({key}, {text}, {extra})" for key, text, extra in rows]).encode()
        )
        self.texts.update("".join([f"({text})" for text in both]).encode())
        if self.of_texts:
            self.each += b"".join(self.of_texts.of(block))
        self.records += len(block)


def made_by(embedder: Embedder) -> dict[str, Any]:
    """Return what vectors depend on besides the input."""
    folder = bert_folder(embedder.runtime.spec.folder)
    return {
        "model": embedder.folder.name,
        "weights": weights_of(folder),
        "tokenizer": tokenizer_of(folder),
        "config": numbers_of(embedder.runtime.config),
        "options": embedder.chosen(),
    }


def weights_of(folder: Path) -> dict[str, str]:
    """Return the sha256 of the files that hold a folder's weights, by name."""
    from bertcli.inference.compiled_cache import digest_of  # it imports numpy

    return {path.name: digest_of(path) for path in find_weights(folder).all}


def tokenizer_of(folder: Path) -> dict[str, str]:
    """Return the sha256 of the files of a folder that a tokenizer is made of, by name."""
    return {path.name: sha256(path) for path in tokenizer_files(folder)}


def numbers_of(config: BertConfig) -> dict[str, Any]:
    """Return what the config says that changes the numbers of the same weights."""
    said = {name: getattr(config, name) for name in NUMBERS}
    ours, usual = _by_name(config.structure), _by_name(BERT)
    if other := {name: value for name, value in ours.items() if value != usual[name]}:
        said["structure"] = json.dumps(other, sort_keys=True)  # a manifest has no tuples
    return said


def _by_name(part: Any) -> Any:
    """Return a part of a structure with the values of its fields, and of parts in it, by name."""
    if hasattr(part, "_asdict"):
        return {name: _by_name(value) for name, value in part._asdict().items()}
    return [_by_name(one) for one in part] if isinstance(part, tuple) else part
