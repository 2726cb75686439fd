"""What vectors depend on: the records, the files of the model, its config, the options.

A run is resumed, and a corpus searched, only where all of these are as they were. Files are hashed
whole before the first row: a change behind the rows that are committed is found as well. Pipes and
stdin cannot be read twice; of these only the records that are committed are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints.scan import bert_folder, find_weights, tokenizer_files
from bertcli.errors import OutputError
from bertcli.families.structure import BERT
from bertcli.files.paths import input_name, refuse_inputs, sha256
from bertcli.files.streams import can_be_reread, unreadable
from bertcli.models.config import BertConfig
from bertcli.records.records import Record, TextBlock

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
        digests = []
        extras = ({} if extra is None else extra for extra in block.extras or repeat(None))
        rows = zip(block.texts, block.pairs or repeat(None), extras, strict=False)
        for text, pair, extra in rows:
            digest = self.key.copy()
            also = (extra.get(name) for name in self.extra)
            digest.update(repr((text, pair, *also)).encode(errors="surrogatepass"))
            digests.append(digest.digest()[:DIGEST_BYTES])
        return digests


@dataclass
class InputDigest:
    """The sha256 of the records so far, so that a changed input is noticed on resuming.

    ``texts`` is that of the texts and pairs alone, whatever else was read with them.
    """

    sha: Any = field(default_factory=hashlib.sha256)
    texts: Any = field(default_factory=hashlib.sha256)
    records: int = 0

    def add(self, records: Sequence[Record]) -> None:
        """Take in records, as they were read: the repr of (id, text, pair, extra) of each."""
        block = TextBlock.of(records)
        pairs, texts = map(repr, block.pairs or repeat(None)), [*map(repr, block.texts)]
        both = [f"{text}, {pair}" for text, pair in zip(texts, pairs, strict=False)]
        ids, extras = (map(repr, column or repeat(None)) for column in (block.ids, block.extras))
        rows = zip(ids, both, extras, strict=False)
        self.sha.update(
            "".join([f"({key}, {text}, {extra})" for key, text, extra in rows]).encode()
        )
        self.texts.update("".join([f"({text})" for text in both]).encode())
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
    return {path.name: sha256(path) for path in find_weights(folder).all}


def tokenizer_of(folder: Path) -> dict[str, str]:
    """Return the sha256 of the files of a folder that a tokenizer is made of, by name."""
    return {path.name: sha256(path) for path in tokenizer_files(folder)}


def numbers_of(config: BertConfig) -> dict[str, Any]:
    """Return what the config says that changes the numbers of the same weights."""
    numbers = {name: getattr(config, name) for name in NUMBERS}
    ours, usual = _by_name(config.structure), _by_name(BERT)
    if other := {name: value for name, value in ours.items() if value != usual[name]}:
        numbers["structure"] = json.dumps(other, sort_keys=True)  # a manifest has no tuples
    return numbers


def _by_name(part: Any) -> Any:
    """Return a part of a structure with the values of its fields, and of parts in it, by name."""
    if hasattr(part, "_asdict"):
        return {name: _by_name(value) for name, value in part._asdict().items()}
    return [_by_name(item) for item in part] if isinstance(part, tuple) else part


ARGUMENTS = "arguments"  # the name of texts that are none of a file

Described = dict[str, Any]  # name, bytes and sha256, of which the last two may be None


@dataclass(frozen=True)
class Inputs:
    """The files that a run reads, ``-`` for stdin, or its texts; other files that it needs."""

    paths: Sequence[str] = ()
    texts: Sequence[str | None] = ()
    needed: Sequence[Path] = ()
    times: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of files that were hashed

    def refuse(self, own: Sequence[Path]) -> None:
        """Raise OutputError when one of them is a file that the run writes."""
        refuse_inputs((*self.paths, *self.needed), own)

    @property
    def streams(self) -> list[str]:
        """Those that can be read only once."""
        return [input_name(path) for path in self.paths if not can_be_reread(path)]

    def described(self) -> list[Described]:
        """Return name, size and sha256 of each. Raises InputError for one that is not there."""
        inputs = [self._file(path) for path in self.paths]
        if self.texts:
            digest = hashlib.sha256(repr(tuple(self.texts)).encode()).hexdigest()
            inputs.append({"name": ARGUMENTS, "bytes": None, "sha256": digest})
        return inputs

    def _file(self, path: str) -> Described:
        if not can_be_reread(path):
            return {"name": input_name(path), "bytes": None, "sha256": None}
        self.times[path] = _times(path)
        return {"name": path, "bytes": self.times[path][0], "sha256": sha256(Path(path))}

    def refuse_changing(self, output: str, was: Sequence[Mapping[str, Any]]) -> None:
        """Raise OutputError when a file that was hashed has changed since: while it was read."""
        for earlier in was:
            name = earlier["name"]
            unchanged = name not in self.times or _times(name) == self.times[name]
            if not unchanged and self._file(name)["sha256"] != earlier["sha256"]:
                raise OutputError(
                    f"{output}: input changed while it was read: {name}",
                    "once nothing writes to it, start over with --overwrite",
                )


def _times(path: str) -> tuple[int, ...]:
    """Return what differs where a file may have changed, its size first."""
    try:
        status = os.stat(path)
        open(path, "rb").close()  # may it be read?
    except OSError as failed:
        raise unreadable(path, failed) from None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def refuse_changed(
    output: str, was: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> None:
    """Raise OutputError, naming the file, when an input is not what it was."""
    before = {str(file.get("name")): file for file in was}
    for file in now:
        earlier = before.get(file["name"], {})
        if earlier.get("sha256") != file["sha256"]:
            raise OutputError(
                f"{output}: input changed: {file['name']}: its records are not those of the run "
                f"that is resumed (sha256 was {_shown(earlier)}, now {_shown(file)})",
                "restore the input, or start over with --overwrite",
            )


def _shown(file: Mapping[str, Any]) -> str:
    return str(file.get("sha256") or "unknown")[:12]
