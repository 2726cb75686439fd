"""The identity of a run: what the bytes of its output depend on.

    inputs = Inputs.of(reader.source, folder.model_files)
    inputs.describe()      # name, bytes and sha256 of each

The identity consists of a fingerprint, which a run makes of its options and its model files, and of
the digests of its inputs.

A run is resumed, or a corpus searched, only if all of this is unchanged. Files are hashed before
the first row, so a change after the committed rows is detected too. Pipes and stdin cannot be read
twice: `embed` compares only the committed records, and other commands commit nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from bertcli.errors import BertcliError, OutputError, option
from bertcli.families.structure import BERT
from bertcli.io.paths import input_name, sha256
from bertcli.io.streams import can_be_reread, unreadable
from bertcli.io.typed_json import shown
from bertcli.model_folder.files import CONFIGS, GRAPHS, SENTENCE_CONFIGS
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.records.batch import RecordBatch
from bertcli.records.input import Input
from bertcli.records.record import Record

OVERWRITE_HINT = f"give {option('overwrite')}, or another name"


def not_resumable(name: str) -> OutputError:
    """Return the error for an existing output that was not written by a resumable run."""
    return OutputError(
        f"{name}: already exists, but has no manifest to resume from",
        f"give {option('overwrite')}, or choose another output",
    )


def refuse_changed_file(
    path: Path,
    digest: str | None,
    error: type[BertcliError] = OutputError,
    hint: str = OVERWRITE_HINT,
) -> None:
    """Raise an error if a file is missing or its sha256 differs from the manifest's."""
    if not path.is_file() or sha256(path) != digest:  # a device may be endless
        raise error(
            f"{path}: was changed after it was made: its sha256 differs from the manifest's", hint
        )


def refuse_changes(name: str, earlier: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise OutputError with the differences between an existing output's identity and a run's."""
    if different := changes(earlier, current):
        raise OutputError(
            f"{name}: cannot resume a different run: {'; '.join(different)}",
            f"run the command as it was, or start over with {option('overwrite')}",
        )


def changes(
    earlier: Mapping[str, Any], current: Mapping[str, Any], *, ignored: Collection[str] = ()
) -> list[str]:
    """Return "KEY was A, now B" for each value that differs, except below keys to be ignored."""
    old_values = flat(earlier)
    new_values = flat(current)
    different = []
    for key in dict.fromkeys([*new_values, *old_values]):
        old = old_values.get(key)
        new = new_values.get(key)
        if old != new and key.partition(".")[0] not in ignored:
            different.append(f"{key} was {shown(old)}, now {shown(new)}")
    return different


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested objects by their dotted paths, such as `options.dim`."""
    values: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            values |= flat(inner, f"{prefix}{key}.")
        else:
            values[prefix + key] = inner
    return values


def identity_of(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the identity of a run from its journal or manifest; None if this is neither."""
    try:
        inputs = {file["name"]: file["sha256"] for file in run["inputs"]}
        return {**run["fingerprint"], "inputs": inputs}
    except (KeyError, TypeError):
        return None


# --- records and models ---

# Keys of config.json that change the results of the same weights. (Others are options.)
CONFIG_KEYS = (
    "hidden_act",
    "is_decoder",
    "layer_norm_eps",
    "num_attention_heads",
    "num_hidden_layers",
    "position_embedding_type",
)

# Numbers of `RecordBatch` columns in a digest: texts and pairs only, or also ids and other fields.
TEXT_COLUMNS = 2
READ_COLUMNS = 4


class InputDigest:
    """The sha256 of the records read so far, which detects a changed input on resuming."""

    def __init__(self) -> None:
        import hashlib  # takes 3 ms, which commands without --resume need not pay

        self.sha256 = hashlib.sha256
        self.columns = [self.sha256() for _ in range(READ_COLUMNS)]
        self.records = 0

    def add(self, records: Sequence[Record]) -> None:
        """Add records to the digest, as the repr of each value."""
        batch = RecordBatch.of(records)
        columns: list[Sequence[Any] | None] = [*batch.columns[:READ_COLUMNS]]
        if batch.windows:  # a vector depends on the text around its chunk
            columns[-1] = [*zip(batch.extras or repeat(None), batch.windows, strict=False)]
        for column, values in zip(self.columns, columns, strict=True):
            # Each value ends with a comma, so the digest does not depend on block boundaries.
            encoded = repr([*(values or [None] * len(records)), 0])[1:-2]
            column.update(encoded.encode())
        self.records += len(records)

    def hexdigest(self, columns: int = READ_COLUMNS) -> str:
        """Return the hexadecimal digest of so many columns, in the order of `RecordBatch`."""
        digests = "".join(column.hexdigest() for column in self.columns[:columns])
        return self.sha256(digests.encode()).hexdigest()

    @property
    def texts(self) -> str:
        """The digest of texts and pairs only, without ids and other fields."""
        return self.hexdigest(TEXT_COLUMNS)


def model_digests(folder: ModelFolder) -> dict[str, Any]:
    """Return the sha256 of the model files that affect vectors: weights and tokenizer."""
    encoder = folder.encoder
    return {"weights": encoder.weights.digests, "tokenizer": tokenizer_digests(encoder)}


def result_digests(folder: ModelFolder) -> dict[str, Any]:
    """Return the sha256 of all files of a model, for results of a head or a search."""
    encoder = folder.encoder
    graphs = [encoder / name for name in GRAPHS.values()]
    graphs += [graph.with_suffix(".bin") for graph in graphs]
    hashed = {*encoder.weights.all_files, *encoder.tokenizer_files}
    settings_files = [path for path in (*folder.model_files, *graphs) if path not in hashed]
    return model_digests(folder) | {"settings": file_digests(folder, settings_files)}


def tokenizer_and_settings_digests(folder: ModelFolder) -> dict[str, Any]:
    """Return the sha256 of the files that token ids depend on: tokenizer and settings."""
    encoder = folder.encoder
    configs = [encoder / name for name in (*CONFIGS, *SENTENCE_CONFIGS)]
    configs += [folder / name for name in (*CONFIGS, *SENTENCE_CONFIGS)]
    return {"tokenizer": tokenizer_digests(encoder), "settings": file_digests(folder, configs)}


def file_digests(folder: ModelFolder, paths: Sequence[Path]) -> dict[str, str]:
    """Return the sha256 of each path that is a file, by its path relative to a folder."""
    files = dict.fromkeys(path for path in paths if path.is_file())
    return {path.relative_to(folder.path).as_posix(): sha256(path) for path in files}


def tokenizer_digests(folder: ModelFolder) -> dict[str, str]:
    """Return the sha256 of the tokenizer files of a folder, by name."""
    return {path.name: sha256(path) for path in folder.tokenizer_files}


def config_values(config: BertConfig) -> dict[str, Any]:
    """Return the config values that change the results of the same weights."""
    values = {name: getattr(config, name) for name in CONFIG_KEYS}
    if config.structure != BERT:
        values["structure"] = repr(config.structure)
    return values


# --- inputs ---

ARGUMENTS = "arguments"  # name of the input for texts given as arguments

InputDescription = dict[str, Any]  # name, bytes and sha256; the last two may be None


@dataclass(frozen=True)
class Inputs:
    """The files that a run reads (``-`` is stdin) or its texts, and the model files."""

    paths: Sequence[str] = ()
    texts: Sequence[str | None] = ()
    lists: Sequence[Path] = ()  # files that list the paths
    cached: Sequence[Path] = ()  # vectors of the paths, which the run writes if missing
    model_files: Sequence[Path] = ()

    @classmethod
    def of(cls, source: Input, model: Sequence[Path]) -> Inputs:
        """Return the inputs of a run over a source, with its model files."""
        texts = source.texts if source.pair is None else (*source.texts, source.pair)
        lists = [Path(source.list_file)] if source.list_file else []
        return cls(source.paths, texts, lists, model_files=model)

    @property
    def streams(self) -> list[str]:
        """Names of the inputs that can be read only once."""
        return [input_name(path) for path in self.paths if not can_be_reread(path)]

    @property
    def all(self) -> list[str | Path]:
        """All files that the run reads."""
        return [*self.paths, *self.lists, *self.cached, *self.model_files]

    def describe(self) -> list[InputDescription]:
        """Return name, size and sha256 of each file of records, and of the texts that were given.

        Raises InputError for a missing file.
        """
        inputs = [self._describe_file(path) for path in self.paths]
        inputs += [self._describe_file(str(path)) for path in self.cached if path.exists()]
        if self.texts:
            import hashlib

            digest = hashlib.sha256(repr(tuple(self.texts)).encode()).hexdigest()
            inputs.append({"name": ARGUMENTS, "bytes": None, "sha256": digest})
        return inputs

    def _describe_file(self, path: str) -> InputDescription:
        if not can_be_reread(path):
            return {"name": input_name(path), "bytes": None, "sha256": None}
        try:
            size = os.path.getsize(path)
            return {"name": input_name(path), "bytes": size, "sha256": sha256(Path(path))}
        except OSError as failed:
            raise unreadable(path, failed) from None
