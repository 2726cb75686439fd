"""What survives a kill: the folder of a run beside its output.

    out.npy                 the output, under its name only when it is whole
    out.npy.manifest.json   what made it
    out.npy.index.jsonl     whose rows are whose, where a record has several; or ids and digests
    out.npy.lock            held by the process that writes
    out.npy.run/            for its owner alone, as long as the run is not over:
        journal             how much of the others is committed, by what run, from which input
        vectors             the vectors so far, raw float32
        fields              the other fields of these rows, for the formats that hold them
        index               what becomes the index
        whole               the output while it is made from these
        manifest            what becomes the manifest, once the output is made
        making              a journal or manifest while it is written

A kill leaves one of these:

- neither journal nor manifest in the folder: nothing is committed;
- a journal: rows are committed. It is replaced, as a whole, after the data is on the disk: it never
  speaks of bytes that are not there, and what is there beyond it is removed;
- a manifest: the output is made, and only has to be moved to its name, which `publish` does from
  wherever a kill left it. The manifest is moved last.

A run is resumed, and a corpus searched, only where all that vectors depend on is as it was: the
records, the files of the model, its config, the options. Files are hashed whole before the first
row: a change behind the rows that are committed is found as well. Pipes and stdin cannot be read
twice; of these only the records that are committed are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zlib import crc32

from bertcli.checkpoints.scan import bert_folder, find_weights, tokenizer_files
from bertcli.errors import BertcliError, OutputError
from bertcli.families.structure import BERT
from bertcli.files.atomic import explained, locked, move, replacing, whole_file
from bertcli.files.paths import beside, input_name, refuse_inputs, sha256
from bertcli.files.streams import can_be_reread, unreadable
from bertcli.files.system_calls import opener, sync, sync_folder, write_all
from bertcli.files.typed_json import BadJsonError, as_json, parse, read_bytes, shown
from bertcli.models.config import BertConfig
from bertcli.records.records import Record, TextBlock
from bertcli.vectors.formats import FIELDS, INDEX, RAW

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder

VERSION = 5  # of the journal and the files beside it
CHUNK = 8 << 20  # bytes that are checked at a time

ANOTHER = "give --overwrite, or another name"
BEGIN_AGAIN = "--overwrite starts over"
ENDS = (".manifest.json", ".index.jsonl", ".lock", ".run")
JOURNAL, WHOLE, MADE, MAKING = "journal", "whole", "manifest", "making"
PARTS = (JOURNAL, RAW, FIELDS, INDEX, WHOLE, MADE, MAKING)


class RunFiles:
    """An output, the files next to it, and the folder of its run.

    ``state`` is what the last commit was given, None on a fresh run; ``complete`` is the manifest
    of an output that is there.
    """

    def __init__(self, path: Path, *, keeps_manifest: bool = True) -> None:
        """Name the files of an output; for a link, those beside what it points to."""
        self.path, self.output = path, Path(os.path.realpath(path))
        self.keeps_manifest = keeps_manifest
        self.manifest, self.index, self.lock, self.folder = (
            beside(self.output, end) for end in ENDS
        )
        self.journal: dict[str, Any] = {}
        self.complete: dict[str, Any] | None = None
        self.files: dict[str, IO[bytes]] = {}

    @property
    def own(self) -> list[Path]:
        """Every file that a run writes or removes, the output first."""
        parts = (self.folder / name for name in PARTS)
        return [self.output, self.manifest, self.index, self.lock, *parts]

    @property
    def state(self) -> Any:
        """What the last commit was given."""
        return self.journal.get("state")

    @property
    def is_made(self) -> bool:
        """Whether the output only has to be moved to its name."""
        return (self.folder / MADE).exists()

    @property
    def is_begun(self) -> bool:
        """Whether a run has left something that is committed."""
        return self.is_made or (self.folder / JOURNAL).exists()

    @contextmanager
    def opened(
        self,
        fingerprint: Mapping[str, Any],
        inputs: Inputs,
        parts: Sequence[str],
        *,
        resume: bool = False,
        update: bool = False,
        overwrite: bool = False,
    ) -> Iterator[None]:
        """Hold the output against other processes, where the run that is resumed had committed.

        ``fingerprint`` is what the bytes depend on (model, options) beside the ``inputs``, which
        are hashed: a run with another one, or other inputs, is not resumed; an update starts over.
        ``parts`` are the files that rows are appended to. Where nothing was committed at the end,
        nothing stays.

        Raises OutputError when another process writes the output, when an input is one of the files
        that are written or removed, when the output, or the rest of a killed run, is there and
        nothing says what to do with it, and for one to go on with that this program has not made,
        or not as it is.
        """
        refuse_inputs((*inputs.paths, *inputs.needed), [self.path, *self.own])
        with locked(self.lock, self.path), ExitStack() as stack:
            with explained(self.path):
                self._begin(as_json(fingerprint), inputs, resume or update, update, overwrite)
                if not self.complete:
                    stack.callback(self._end)
                    self.folder.mkdir(0o700, exist_ok=True)
                    for name in parts:
                        self.files[name] = stack.enter_context(self._appended(name))
            yield

    def _begin(
        self, now: dict[str, Any], inputs: Inputs, goes_on: bool, update: bool, overwrite: bool
    ) -> None:
        if goes_on and self.is_made:
            self.end()
        journal = {} if overwrite else self._read()
        left = self.folder.name if self.is_begun and not goes_on else None
        if journal and update and not journal["fingerprint"].get("update"):
            left = self.folder.name
        if left and not overwrite:
            hint = f"--resume continues it, {BEGIN_AGAIN}"
            raise OutputError(f"{self.path}: an interrupted run left {left}", hint)
        exists = self.output.exists()
        earlier = self._unchanged() if exists and goes_on and not journal else journal
        for path in () if earlier or overwrite else (self.output, self.index):
            if path.exists():
                shown = self.path if path == self.output else path
                raise OutputError(f"{shown}: already exists", ANOTHER)
        if journal and exists and not journal["overwrite"]:
            raise OutputError(
                f"{self.path}: was created after the run was interrupted",
                "move it away, or start over with --overwrite",
            )
        described = inputs.described()  # fails before anything is removed
        if earlier:
            before, after = _depends_on(earlier), {**now, "inputs": _digests(described)}
            if not update:
                refuse_changes(str(self.path), before, after)
            elif before != after or None in after["inputs"].values():  # stdin and pipes have none
                earlier = {}
        if earlier and earlier is journal:
            self.journal = journal
            return
        self.clear()  # of a run that was killed before its first journal
        self.complete = earlier or None
        self.journal = {
            "fingerprint": now,
            "inputs": described,
            "overwrite": overwrite or update,  # an output that is there already may be replaced
            "parts": {},  # name -> bytes, crc32
        }

    def _read(self) -> dict[str, Any]:
        """Return the journal, empty where there is none. Raises OutputError for a broken one."""
        path = self.folder / JOURNAL
        raw = read_bytes(path, OutputError, BEGIN_AGAIN)
        if raw is None:
            return {}
        journal = object_in(raw)
        if journal.pop("version", None) != VERSION:
            raise OutputError(f"{path}: not a journal of this version of bertcli", BEGIN_AGAIN)
        return journal

    def _unchanged(self) -> dict[str, Any]:
        """Return the manifest of an output that is as it was made. Raises OutputError else."""
        manifest = object_in(read_bytes(self.manifest, OutputError))
        if not manifest.keys() >= {"fingerprint", "inputs", "sha256"}:
            raise not_resumable(str(self.path))
        refuse_changed_file(self.output, manifest["sha256"])
        if "index" in manifest:
            refuse_changed_file(self.index, manifest.get("index_sha256"))
        return manifest

    def _appended(self, name: str) -> IO[bytes]:
        """Open a file behind what is committed of it: what is beyond is removed.

        Raises OutputError when that is not what was written.
        """
        path, (size, expected), crc = self.folder / name, self.journal["parts"].get(name, (0, 0)), 0
        file = open(path, "ab", 0, opener=opener(None))  # noqa: SIM115 - `opened` closes it
        with open(path, "rb") as written:
            for at in range(0, size, CHUNK):
                crc = crc32(written.read(min(CHUNK, size - at)), crc)
        if crc != expected:
            file.close()
            raise OutputError(
                f"{path}: the committed rows are not those that were written: their checksum "
                "differs from the journal's",
                f"the file was changed or cut, or the disk fails; {BEGIN_AGAIN}",
            )
        file.truncate(size)
        return file

    def append(self, name: str, data: bytes) -> None:
        """Write to the end of a file."""
        size, crc = self.journal["parts"].get(name, (0, 0))
        write_all(self.files[name], data)
        self.journal["parts"][name] = size + len(data), crc32(data, crc)

    def commit(self, state: Any) -> None:
        """Make all that was appended durable, with a JSON value for whoever resumes after it."""
        for file in self.files.values():
            sync(file)
        journal = self.journal | {"state": state, "version": VERSION}
        put_json(self.folder / JOURNAL, journal, self.folder / MAKING)
        self.journal["state"] = state

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Give the whole output its name, and its manifest."""
        for file in self.files.values():
            sync(file)
            file.close()  # Windows moves no open file
        if self.output.exists():
            shutil.copymode(self.output, self.folder / WHOLE)  # what was private stays it
        put_json(self.folder / MADE, manifest, self.folder / MAKING)
        self.complete = as_json(manifest)
        self.publish()

    def publish(self) -> None:
        """Give what is made its name. Done again after a kill, it ends in the same."""
        whole, index, manifest = (self.folder / name for name in (WHOLE, INDEX, MADE))
        self.manifest.unlink(missing_ok=True)  # that of an output which is replaced
        if "index" not in object_in(read_bytes(manifest, OutputError)):
            self.index.unlink(missing_ok=True)  # likewise
        elif index.exists():  # before the output has its name: both there are of one run
            self.output.unlink(missing_ok=True)
            shutil.copymode(whole, index)
            move(index, self.index)
        if whole.exists():
            move(whole, self.output)
            sync_folder(self.output.parent)
        elif not self.output.exists():
            raise OutputError(f"{self.output}: was removed", "start over with --overwrite")
        self.clear(but=MADE)
        if self.keeps_manifest:
            shutil.copymode(self.output, manifest)
            move(manifest, self.manifest)
        self.clear()

    def end(self) -> None:
        """Publish what a killed run had made. Raises OutputError where it was changed since."""
        manifest = object_in(read_bytes(self.folder / MADE, OutputError))
        for part, key in ((WHOLE, "sha256"), (INDEX, "index_sha256")):
            if key in manifest and (self.folder / part).exists():
                refuse_changed_file(self.folder / part, manifest[key])
        self.publish()

    def _end(self) -> None:
        """Remove the partial files of a run that has committed nothing."""
        if not self.is_begun:
            self.clear()

    def clear(self, but: str = "") -> None:
        """Remove the folder of the run: first the journal, without which the others say nothing."""
        for name in PARTS:
            if name != but:
                (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # there is none, or it holds what is not ours
            self.folder.rmdir()


def end_killed(path: Path) -> None:
    """Give an output its name and its manifest whose run had made it when it was killed.

    What cannot be ended stays as it is, and so does what is not made.
    """
    run = RunFiles(path)
    if run.is_made:
        with suppress(OutputError), explained(path), locked(run.lock, path):
            run.end()


def put_json(path: Path, value: Any, making: Path | None = None) -> None:
    """Write a JSON file that is whole, on the disk, or as it was; until then it is ``making``."""
    with replacing(path, making) if making else whole_file(path) as file:
        file.write(json_text(value))


def json_text(value: Any) -> bytes:
    """Return what stands in a journal or manifest."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    return text.encode(errors="surrogatepass")


def object_in(raw: bytes | None) -> dict[str, Any]:
    """Return the object that a journal or manifest is; empty when there is none that is whole."""
    try:
        value = None if raw is None else parse(raw)
    except BadJsonError:
        value = None
    return value if isinstance(value, dict) else {}


def not_resumable(name: str) -> OutputError:
    """Return the refusal of an output that no run which can be resumed has made."""
    return OutputError(
        f"{name}: already exists, but has no manifest to resume from",
        "give --overwrite, or choose another output",
    )


def refuse_changed_file(
    path: Path,
    digest: str | None,
    error: type[BertcliError] = OutputError,
    hint: str = ANOTHER,
) -> None:
    """Raise an error for a file that is not the one of which a manifest has the sha256."""
    if not path.is_file() or sha256(path) != digest:  # a device may have no end
        raise error(
            f"{path}: was changed after it was made: its sha256 differs from the manifest's", hint
        )


def refuse_changes(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise OutputError, naming each difference, when another run made what is there."""
    before, after = _flat(was), _flat(now)
    different = [
        f"{key} was {shown(before.get(key))}, now {shown(after.get(key))}"
        for key in dict.fromkeys([*after, *before])
        if before.get(key) != after.get(key)
    ]
    if different:
        raise OutputError(
            f"{name}: cannot resume a different run: {'; '.join(different)}",
            "run the command as it was, or start over with --overwrite",
        )


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            flat |= _flat(inner, f"{before}{key}.")
        else:
            flat[before + key] = inner
    return flat


def _depends_on(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the bytes of a run depend on, by its journal or manifest."""
    return {**run["fingerprint"], "inputs": _digests(run["inputs"])}


def _digests(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {file["name"]: file["sha256"] for file in inputs}


# --- what vectors depend on ---

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
    if config.structure != BERT:
        numbers["structure"] = repr(config.structure)
    return numbers


ARGUMENTS = "arguments"  # the name of texts that are none of a file

Described = dict[str, Any]  # name, bytes and sha256, of which the last two may be None


@dataclass(frozen=True)
class Inputs:
    """The files that a run reads, ``-`` for stdin, or its texts; other files that it needs."""

    paths: Sequence[str] = ()
    texts: Sequence[str | None] = ()
    needed: Sequence[Path] = ()

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
        try:
            return {"name": path, "bytes": os.path.getsize(path), "sha256": sha256(Path(path))}
        except OSError as failed:
            raise unreadable(path, failed) from None
