"""What survives a kill: the folder of a run beside its output.

    out.npy                 the output, under its name only when it is whole
    out.npy.manifest.json   what made it
    out.npy.index.jsonl     whose rows are whose, where a record has several; or ids and digests
    out.npy.lock            held by the process that writes
    out.npy.run/            for its owner alone, as long as the run is not over:
        journal             how much of the others is committed, by what run, from which input
        vectors             the vectors so far, raw float32
        fields              lines of JSON: the other fields of these records as columns, how many
                            rows each has, and the digest of its text where an output is updated
        index, whole        the index and the output while they are made from these
        making              a journal or manifest while it is written

Rows go to a `Sink`, which appends them to these files, whatever the format; the output is made from
them at the end. So its bytes depend on the rows alone, and int8, which needs the range of every
dimension over all rows, is not special. Where a record has several rows, the index says which;
where it has one, the index has its id.

The journal is replaced, as a whole, after the data is on the disk: it never speaks of bytes that
are not there, and what is there beyond it is removed. Without one nothing is committed. It goes
last, so a run that is killed while the output gets its name makes it again when it is resumed; the
manifest comes before the output.

A run is resumed, and a corpus searched, only where all that vectors depend on is as it was: the
records, the files of the model, its config, the options. Files are hashed whole before the first
row: a change behind the rows that are committed is found as well. Pipes and stdin cannot be read
twice; of these only the records that are committed are compared.

    target = RowTarget(Path("tags.csv"), "csv", resume=True)
    with target.written(run, fingerprint, inputs) as write:
        for rows in run:
            write(rows)

A `RowTarget` keeps the rows of any other command in such a folder: as lines of JSON, whatever the
format; the file is made from them at the end. They are committed whenever the run has begun another
window of records. Such a run that reads a pipe commits nothing, since its records cannot be
compared with those of another: it starts over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np

from bertcli.checkpoints.scan import bert_folder, find_weights, tokenizer_files
from bertcli.errors import BertcliError, OutputError, PrecisionError
from bertcli.families.structure import BERT
from bertcli.files.atomic import explained, locked, move, replacing, whole_file
from bertcli.files.jsonl import NAMES, to_lines
from bertcli.files.paths import beside, input_name, refuse_inputs, sha256
from bertcli.files.streams import can_be_reread, packed, unreadable
from bertcli.files.system_calls import opener, sync, sync_folder, write_all
from bertcli.files.tables import TableHeader, lines_of
from bertcli.files.typed_json import BadJsonError, as_json, parse, read_bytes, shown
from bertcli.files.versions import __version__
from bertcli.files.writers import Write, writer_of
from bertcli.models.config import BertConfig
from bertcli.records.records import Record, TextBlock
from bertcli.records.source import Source
from bertcli.tokenizing.run import ReaderRun
from bertcli.vectors.formats import (
    FIELDS,
    RAW,
    WITH_FIELDS,
    WRITERS,
    Fields,
    Rows,
    check_values,
    write_index,
)

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.embedding.sparse import TermNames

VERSION = 9  # of the journal and the files beside it
CHUNK = 8 << 20  # bytes that are checked at a time

ANOTHER = "give --overwrite, or another name"
BEGIN_AGAIN = "--overwrite starts over"
ENDS = (".manifest.json", ".index.jsonl", ".lock", ".run")
JOURNAL, WHOLE, INDEX, MAKING = "journal", "whole", "index", "making"
PARTS = (JOURNAL, RAW, FIELDS, WHOLE, INDEX, MAKING)


class RunFiles:
    """An output, the files next to it, and the folder of its run."""

    def __init__(self, path: Path) -> None:
        """Name the files of an output; for a link, those beside what it points to."""
        self.output = Path(os.path.realpath(path))
        self.manifest, self.index, self.lock, self.folder = (
            beside(self.output, end) for end in ENDS
        )

    @property
    def own(self) -> list[Path]:
        """Every file that a run writes or removes, the output first."""
        parts = (self.folder / name for name in PARTS)
        return [self.output, self.manifest, self.index, self.lock, *parts]

    @property
    def is_begun(self) -> bool:
        """Whether a run has left something that is committed."""
        return (self.folder / JOURNAL).exists()


@dataclass(frozen=True)
class Target:
    """An output file and how it is to be made."""

    path: Path
    form: str
    precision: str = "float32"
    resume: bool = False
    update: bool = False  # what is there is replaced, and an index has the digests of texts
    overwrite: bool = False
    manifest: bool = True
    many: bool = False  # whether a record may have several rows
    places: tuple[str, ...] = ()  # carried fields that the index has beside the ids
    terms: TermNames | None = None  # whether the rows of a record are weights of these
    parts: ClassVar[tuple[str, ...]] = (RAW, FIELDS)  # the files that rows are appended to

    @property
    def with_fields(self) -> bool:
        """Whether the format holds more than vectors."""
        return self.form in WITH_FIELDS

    @property
    def only_ids(self) -> bool:
        """Whether of all fields of a record its id alone is written, where it has one."""
        return not self.with_fields and (self.terms is not None or not self.many)

    def indexed(self, *, named: bool) -> bool:
        """Tell whether there is an index beside the output: of rows and whose they are."""
        if self.update or self.terms or self.with_fields:
            return self.update
        in_archive = self.form == "npz" and not self.places
        return self.many or (named and not in_archive)

    @contextmanager
    def opened(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> Iterator[Sink]:
        """Hold the output, and yield the sink for its rows, where the run it resumes had committed.

        ``fingerprint`` is what the bytes depend on (model, options) beside the ``inputs``, which
        are hashed: a run with another one, or other inputs, is not resumed; an update starts over.
        Where nothing was committed at the end, nothing stays.

        Raises OutputError when another process writes the output, when an input is one of the files
        that are written or removed, when the output, or the rest of a killed run, is there and
        nothing says what to do with it, and for one to go on with that this program has not made,
        or not as it is.
        """
        with explained(self.path):
            if self.path.exists() and not self.path.is_file():
                raise OutputError(f"{self.path}: is a folder, device or pipe", "name a file")
        sink = Sink(self)
        how: dict[str, Any] = {"format": self.form, "precision": self.precision}
        how |= {"update": True} if self.update else {}
        refuse_inputs((*inputs.paths, *inputs.needed), [self.path, *sink.own])
        with locked(sink.lock, self.path), ExitStack() as stack:
            with explained(self.path):
                sink.begin(as_json({**fingerprint, **how}), inputs)
                if not sink.complete:
                    stack.callback(sink.end)
                    sink.folder.mkdir(0o700, exist_ok=True)
                    for name in self.parts:
                        sink.files[name] = stack.enter_context(sink.appended(name))
            try:
                yield sink
            except PrecisionError:  # these rows can never be written so: nothing is resumed
                (sink.folder / JOURNAL).unlink(missing_ok=True)
                raise


class Sink(RunFiles):
    """Where the rows of one output go, and how much of them is committed.

    ``complete`` tells that the output is there already.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target.path)
        self.target, self.complete = target, False
        self.files: dict[str, IO[bytes]] = {}
        self.journal: dict[str, Any] = {
            "overwrite": target.overwrite or target.update,  # an output that is there is replaced
            "parts": {},  # name -> bytes, crc32
            "rows": 0,
            "records": 0,
            "shape": [0],  # of a row; known from the first one on
            "named": False,  # whether a record has an id, or a place
            "state": None,
        }

    @property
    def state(self) -> Any:
        """What the last commit was given, None on a fresh run."""
        return self.journal["state"]

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return int(self.journal["rows"])

    # --- where a run begins ---

    def begin(self, now: Mapping[str, Any], inputs: Inputs) -> None:
        """Find out what is there, and where the run begins: see `Target.opened`."""
        target, path = self.target, self.target.path
        update, overwrite, goes_on = target.update, target.overwrite, target.resume or target.update
        journal = {} if overwrite else self._read()
        if journal and not (target.resume or (update and journal["fingerprint"].get("update"))):
            hint = f"--resume continues it, {BEGIN_AGAIN}"
            raise OutputError(f"{path}: an interrupted run left {self.folder.name}", hint)
        exists = self.output.exists()
        earlier = self._unchanged() if exists and goes_on and not journal else journal
        for place in () if earlier or overwrite else (path, self.index):
            if place.exists():
                raise OutputError(f"{place}: already exists", ANOTHER)
        if journal and exists and not journal["overwrite"]:
            raise OutputError(
                f"{path}: was created after the run was interrupted",
                "move it away, or start over with --overwrite",
            )
        described = inputs.described()  # fails before anything is removed
        if earlier:
            before = depends_on(earlier) or {}
            after = depends_on({"fingerprint": now, "inputs": described}) or {}
            if not update:
                refuse_changes(str(path), before, after)
            elif before != after or None in after["inputs"].values():  # stdin and pipes have none
                earlier = {}
        if earlier and earlier is journal:
            self.journal = journal
            return
        self.clear()  # of a run that was killed before its first journal
        self.complete = bool(earlier)
        self.journal |= {"fingerprint": now, "inputs": described}

    def _read(self) -> dict[str, Any]:
        """Return the journal, empty where there is none. Raises OutputError for a broken one."""
        path = self.folder / JOURNAL
        raw = read_bytes(path, OutputError, BEGIN_AGAIN)
        if raw is None:
            return {}
        journal = object_in(raw)
        if journal.get("version") != VERSION or depends_on(journal) is None:
            raise OutputError(f"{path}: not a journal of this version of bertcli", BEGIN_AGAIN)
        return journal

    def _unchanged(self) -> dict[str, Any]:
        """Return the manifest of an output that is as it was made. Raises OutputError else."""
        manifest = object_in(read_bytes(self.manifest, OutputError))
        if "sha256" not in manifest or depends_on(manifest) is None:
            raise not_resumable(str(self.target.path))
        refuse_changed_file(self.output, manifest["sha256"])
        if "index" in manifest:
            refuse_changed_file(self.index, manifest.get("index_sha256"))
        return manifest

    def appended(self, name: str) -> IO[bytes]:
        """Open a file behind what is committed of it: what is beyond is removed.

        Raises OutputError when that is not what was written.
        """
        path, (size, expected), crc = self.folder / name, self.journal["parts"].get(name, (0, 0)), 0
        file = open(path, "ab", 0, opener=opener(None))  # noqa: SIM115 - `Target.opened` closes it
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

    # --- rows ---

    def write(self, fields: Fields, vectors: np.ndarray) -> None:
        """Add rows: vectors float32 [n, D...], and the other fields of their records."""
        journal = self.journal
        check_values(vectors, self.target.precision)
        journal["shape"] = vectors.shape[1:]
        journal["rows"] += len(vectors)
        journal["records"] += fields.count
        journal["named"] |= bool(fields.others) or any(key is not None for key in fields.id or ())
        lines = to_lines([vars(fields)][: fields.count])
        self.append({RAW: vectors.astype("<f4", copy=False).tobytes(), FIELDS: lines.encode()})

    def append(self, parts: Mapping[str, bytes]) -> None:
        """Add bytes to the files of the run, by their names."""
        for name, file in self.files.items():
            size, crc = self.journal["parts"].get(name, (0, 0))
            with explained(self.target.path):
                write_all(file, parts[name])
            self.journal["parts"][name] = size + len(parts[name]), crc32(parts[name], crc)

    def commit(self, state: Any) -> None:
        """Make all rows durable, with a JSON value for whoever resumes after them."""
        with explained(self.target.path):
            for file in self.files.values():
                sync(file)
            self.journal |= {"state": state, "version": VERSION}
            with replacing(self.folder / JOURNAL, self.folder / MAKING) as file:
                file.write(json.dumps(self.journal).encode())

    def finish(self, about: Mapping[str, Any]) -> None:
        """Make the output and its manifest, which holds ``about``, and remove the folder.

        After a kill on the way the run is resumed from its last commit: commit before.
        """
        target, journal = self.target, self.journal
        index = self.folder / INDEX
        with explained(target.path):
            rows = Rows(
                self.folder,
                self.rows,
                journal["records"],
                tuple(journal["shape"]),
                target.precision,
                target.many,
                journal["named"] and bool(target.terms or not target.many),
                target.terms,
            )
            with self.whole() as file:
                WRITERS[target.form](file, target.form, rows)
            shape, dtype = rows.kind()
            manifest = {
                **about,
                "precision": target.precision,
                "rows": shape[0],
                **({"terms": rows.count} if rows.terms else {}),
                "shape": shape,
                "dtype": dtype.name,
            }
            if rows.ranges is not None:
                low, high = rows.ranges.tolist()
                manifest["ranges"] = {"min": low, "max": high}
            indexed = target.indexed(named=journal["named"])
            if indexed:
                write_index(rows, index, with_fields=target.with_fields)
                manifest |= {"index": self.index.name, "index_sha256": sha256(index)}
            self.publish(manifest)

    @contextmanager
    def whole(self) -> Iterator[IO[bytes]]:
        """Yield the file that becomes the output; it is on the disk at the end."""
        place = self.folder / WHOLE
        with explained(self.target.path), open(place, "wb", opener=opener(None)) as file:
            with packed(self.output, file) as inner:
                yield inner
            sync(file)

    def publish(self, about: Mapping[str, Any]) -> None:
        """Give the output and what stands beside it their names, and remove the folder."""
        target, journal = self.target, self.journal
        whole, index = self.folder / WHOLE, self.folder / INDEX
        with explained(target.path):
            manifest = {
                **about,
                "bertcli": __version__,
                "fingerprint": journal["fingerprint"],
                "inputs": journal["inputs"],
                "output": self.output.name,
                "format": target.form,
                "sha256": sha256(whole),
            }
            journal["overwrite"] = True  # from here on, what has the name is ours
            self.commit(self.state)
            for file in self.files.values():
                file.close()  # Windows moves no open file
            if self.output.exists():
                shutil.copymode(self.output, whole)  # what was private stays it
            for path in (self.output, self.index, self.manifest):
                path.unlink(missing_ok=True)
            mode = stat.S_IMODE(whole.stat().st_mode)
            if index.exists():
                move(index, self.index, mode)
            if target.manifest:
                with replacing(self.manifest, self.folder / MAKING, mode) as file:
                    file.write(json_text(manifest))
            move(whole, self.output)
            sync_folder(self.output.parent)
            self.clear()

    def end(self) -> None:
        """Remove the partial files of a run that has committed nothing."""
        if not self.is_begun:
            self.clear()

    def clear(self) -> None:
        """Remove the folder of the run: first the journal, without which the others say nothing."""
        for name in PARTS:
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # there is none, or it holds what is not ours
            self.folder.rmdir()


def put_json(path: Path, value: Any) -> None:
    """Write a JSON file that is whole, on the disk, or as it was."""
    with whole_file(path) as file:
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


def depends_on(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the bytes of a run depend on; None for a journal or manifest that is none."""
    try:
        inputs = {file["name"]: file["sha256"] for file in run["inputs"]}
        return {**run["fingerprint"], "inputs": inputs}
    except (KeyError, TypeError):
        return None


# --- what vectors depend on ---

# Keys of config.json that change the numbers of the same weights; what else does is an option.
NUMBERS = (
    "hidden_act",
    "is_decoder",
    "layer_norm_eps",
    "num_attention_heads",
    "num_hidden_layers",
    "position_embedding_type",
)

# Columns of `TextBlock` that are digested: texts and pairs; with ids and other fields.
TEXTS, READ = 2, 4


class InputDigest:
    """The sha256 of the records so far, so that a changed input is noticed on resuming."""

    def __init__(self) -> None:
        self.columns, self.records = [hashlib.sha256() for _ in range(READ)], 0

    def add(self, records: Sequence[Record]) -> None:
        """Take in records, as they were read: the repr of each of their values."""
        for column, values in zip(self.columns, TextBlock.of(records).columns, strict=False):
            # A comma behind each, so that it does not matter how records are divided into blocks.
            listed = repr([*(values or [None] * len(records)), 0])[1:-2]
            column.update(listed.encode())
        self.records += len(records)

    def of(self, columns: int = READ) -> str:
        """Return the digest of the first columns, in hexadecimal."""
        digests = "".join(column.hexdigest() for column in self.columns[:columns])
        return hashlib.sha256(digests.encode()).hexdigest()

    @property
    def texts(self) -> str:
        """That of the texts and pairs alone, whatever else was read with them."""
        return self.of(TEXTS)


def made_by(embedder: Embedder) -> dict[str, Any]:
    """Return what vectors depend on besides the input."""
    return {
        "model": embedder.folder.name,
        **files_of_model(embedder.runtime.spec.folder),
        "config": numbers_of(embedder.runtime.config),
        "options": embedder.chosen(),
    }


def files_of_model(folder: Path) -> dict[str, Any]:
    """Return the sha256 of the files of a model that decide what it makes of a text."""
    inner = bert_folder(folder)
    return {"weights": find_weights(inner).digests, "tokenizer": tokenizer_of(inner)}


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

    @classmethod
    def of(cls, source: Source, model: Sequence[Path]) -> Inputs:
        """Return what a run reads of a source, and the files of its model."""
        texts = source.texts if source.pair is None else (*source.texts, source.pair)
        needed = [Path(source.list_file)] if source.list_file else []
        return cls(source.paths, texts, [*needed, *model])

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


# --- rows of any other command ---

AT_ONCE = 4096  # rows that are read again together
LINES = ("finished", "jsonl")  # formats whose file has the bytes that wait


@dataclass(frozen=True)
class RowTarget(Target):
    """An output of rows."""

    parts: ClassVar = (FIELDS,)

    @contextmanager
    def written(
        self, run: ReaderRun | None, fingerprint: Mapping[str, Any], inputs: Inputs
    ) -> Iterator[Write | None]:
        """Yield what takes the rows of a run, which begins behind what is committed.

        None where the file is there already, complete. Where there is no run, nothing is committed.
        Raises OutputError as `opened` does, and for a file that was made of a pipe, which cannot be
        compared.
        """
        with self.opened(fingerprint, inputs) as sink:
            if sink.complete and inputs.streams:
                raise OutputError(
                    f"{self.path}: already exists, and {inputs.streams[0]} cannot be compared with "
                    "what it was made of",
                    ANOTHER,
                )
            if sink.complete:
                yield None
                return
            if run and sink.state:
                run.begin_after(sink.state)
            else:  # what is there is of a pipe, whose run was killed at its end
                sink.files[FIELDS].truncate(0)
                sink.journal["parts"] = {}
            headers: list[TableHeader] = []
            lasting = run is not None and not inputs.streams

            def write(rows: Sequence[Any]) -> None:
                if run and lasting and run.done != sink.state:
                    sink.commit(run.done)
                headers.extend(row for row in rows if isinstance(row, TableHeader))
                if self.form == "finished":
                    data = b"".join(rows)
                else:
                    data = to_lines(lines_of(rows)).encode(errors=NAMES)
                sink.append({FIELDS: data})

            yield write
            if run and run.done and lasting:
                sink.commit(run.done)
            form = "finished" if self.form in LINES else self.form
            with sink.whole() as file, writer_of(form)(file) as put:
                for rows in self._waiting(sink.folder / FIELDS):
                    headers.clear()
                    put(rows)
                if headers and form != "finished":
                    put(headers)
            sink.publish({"counts": asdict(run.tally)} if run else {})

    def _waiting(self, path: Path) -> Iterator[list[Any]]:
        """Yield the rows that wait, some at a time."""
        with path.open("rb") as lines:
            while some := [*islice(lines, AT_ONCE)]:
                yield [b"".join(some)] if self.form in LINES else [*map(parse, some)]
