"""Runs that write an output and survive a kill: rows are committed beside the output.

    target = RowTarget(Path("tags.csv"), "csv", resume=True)
    with target.written(run, fingerprint, inputs) as write:
        for rows in run:
            write(rows)

Rows go to a `Sink`, which appends them to files of the run folder (see `files.output`), whatever
the format; the output is made from them at the end. So its bytes depend on the rows alone, and
int8, which needs the range of every dimension over all rows, is not special. The index maps records
to row ranges, or stores the id where each record has one row.

    vectors      raw float32
    fields       lines of JSON: the other fields of some records as columns, how many rows each
                 record has, and, for outputs that are updated, the digest of its text

The journal is replaced atomically after the data is synced. Bytes past the committed offset are
truncated on resume. It is deleted last: a run that is killed while it is published makes the output
again when it is resumed.

A run is resumed, and a corpus searched, only if all that the rows depend on is unchanged: the
inputs, the files of the model, the options. Files are hashed before the first row, so that a change
after the committed rows is found as well. Pipes and stdin cannot be read twice: only the committed
records are compared (embed), or nothing is committed (all other commands).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np

from bertcli.errors import BertcliError, OutputError, PrecisionError, option
from bertcli.families.structure import BERT
from bertcli.formats.jsonl import NAMES, to_lines
from bertcli.formats.precision import check_values
from bertcli.formats.registry import FINISHED, FORMATS, Holds, load
from bertcli.formats.tables import TableHeader, lines_of
from bertcli.formats.vector_writer import Fields, Rows, write_index
from bertcli.formats.writers import Write, json_array, writer_of
from bertcli.io.output_files import (
    FIELDS,
    JOURNAL,
    NEW_INDEX,
    NEW_OUTPUT,
    RAW_VECTORS,
    SAVING,
    OutputFiles,
    object_in,
)
from bertcli.io.paths import WatchedFiles, input_name, refuse_inputs, sha256
from bertcli.io.publish import explained, replacing, whole_file
from bertcli.io.streams import can_be_reread, packed, unreadable
from bertcli.io.system_calls import opener, sync, write_all
from bertcli.io.typed_json import as_json, parse, read_bytes, shown
from bertcli.model_folder.files import CONFIGS, GRAPHS, SENTENCE_CONFIGS
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.records.batch import RecordBatch
from bertcli.records.input import Input
from bertcli.records.record import Record
from bertcli.runs.embedded_rows import fields_of_block
from bertcli.tokenizing.run import ReaderRun
from bertcli.versions import __version__

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.embedding.pooling import EmbeddedBlock
    from bertcli.embedding.sparse import TermNames

VERSION = 10  # of the journal and the files beside it
CHUNK = 8 << 20  # bytes that are checked at a time

ANOTHER = f"give {option('overwrite')}, or another name"
BEGIN_AGAIN = f"{option('overwrite')} starts over"


class OutputState(Enum):
    """What a run finds where it is to write."""

    NEW = "nothing, or something that it replaces"
    INTERRUPTED = "committed rows of the same run"
    COMPLETE = "the output of the same run"


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
    parts: ClassVar[tuple[str, ...]] = (RAW_VECTORS, FIELDS)  # the files that rows are appended to

    @property
    def with_fields(self) -> bool:
        """True if the format holds more than vectors."""
        return FORMATS[self.form].can_hold(Holds.ROWS)

    @property
    def only_ids(self) -> bool:
        """Whether of all fields of a record its id alone is written, where it has one."""
        return not self.with_fields and (self.terms is not None or not self.many)

    def indexed(self, *, named: bool) -> bool:
        """Tell whether there is an index beside the output: of rows and whose they are."""
        if self.update or self.terms or self.with_fields:
            return self.update
        in_archive = FORMATS[self.form].can_hold(Holds.IDS) and not self.places
        return self.many or (named and not in_archive)

    def fields_of(self, block: EmbeddedBlock) -> Fields:
        """Return what is written of records beside their vectors."""
        if not self.only_ids:
            return fields_of_block(block)
        records = block.records
        extras = records.extras if self.places else None
        located = extras and [{name: (row or {})[name] for name in self.places} for row in extras]
        return Fields(len(block), records.ids, others=located)

    def sink(self, model: WatchedFiles) -> Sink:
        """Return the sink for the rows of a run."""
        return Sink(self, model)

    @contextmanager
    def opened(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> Iterator[Sink]:
        """Lock the output, and yield the sink for its rows, which continues an interrupted run.

        ``fingerprint`` is what the bytes depend on (model, options) beside the ``inputs``, which
        are hashed. A run with another fingerprint or other inputs is not resumed; an update starts
        over. If nothing is committed at the end, nothing remains.

        Raises OutputError if another process writes the output, if an input is one of the files
        that are written or removed, if something else has the name of one of them, if the output or
        an interrupted run exists and no option says what to do with it, and if what is there to be
        continued has been changed.
        """
        with explained(self.path):
            if self.path.exists() and not self.path.is_file():
                raise OutputError(f"{self.path}: is a folder, device or pipe", "name a file")
        sink = self.sink(WatchedFiles(inputs.model_files))
        identity: dict[str, Any] = {"format": self.form, "precision": self.precision}
        identity |= {"update": True} if self.update else {}
        needed: tuple[str | Path, ...] = (
            *inputs.paths,
            *inputs.lists,
            *inputs.cached,
            *inputs.model_files,
        )
        refuse_inputs(needed, [self.path, *sink.all])
        with sink.locked(), ExitStack() as stack:
            sink.refuse_foreign_files(manifest=self.manifest, index=self.indexed(named=True))
            with explained(self.path):
                sink.begin(as_json({**fingerprint, **identity}), inputs)
                if not sink.complete:
                    stack.callback(sink.end)
                    for name in self.parts:
                        sink.files[name] = stack.enter_context(sink.appended(name))
            try:
                yield sink
            except PrecisionError:  # these rows can never be written so: nothing is resumed
                (sink.folder / JOURNAL).unlink(missing_ok=True)
                raise


class Sink(OutputFiles):
    """Where the rows of one output go, and how much of them is committed.

    ``complete`` is True if the output exists already. ``model`` are the files of the model, which
    may be mapped: no rows are committed once one of them has changed.
    """

    def __init__(self, target: Target, model: WatchedFiles) -> None:
        super().__init__(target.path)
        self.target = target
        self.model = model
        self.complete = False
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

    def begin(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> None:
        """Find out what is there, and continue it or clear it: see `Target.opened`."""
        described = inputs.described()  # fails before anything is removed
        run = {"fingerprint": fingerprint, "inputs": described}
        match self.found(depends_on(run) or {}, inputs):
            case OutputState.INTERRUPTED:
                self.journal = self._read_journal()
                return
            case OutputState.COMPLETE:
                self.complete = True
        self.clear()
        self.journal |= run

    def found(self, identity: Mapping[str, Any], inputs: Inputs) -> OutputState:
        """Return what is there. Raises OutputError if this run may not continue or replace it."""
        target = self.target
        path = target.path
        if target.overwrite:
            return OutputState.NEW
        if journal := self._read_journal():
            is_update = target.update and journal["fingerprint"].get("update")
            if not (target.resume or is_update):
                self.refuse_replacing()
            if self.output.exists() and not journal["overwrite"]:
                raise OutputError(
                    f"{path}: was created after the run was interrupted",
                    f"move it away, or start over with {option('overwrite')}",
                )
            earlier = journal
            state = OutputState.INTERRUPTED
        elif self.output.exists() and (target.resume or target.update):
            earlier = self._unchanged()
            state = OutputState.COMPLETE
        else:
            if not target.update:  # which replaces what it finds
                self.refuse_replacing(index=True)
            return OutputState.NEW
        before = depends_on(earlier) or {}
        for cached in inputs.cached:  # made again if it is missing
            if not cached.exists():
                before.get("inputs", {}).pop(str(cached), None)
        if not target.update:
            refuse_changes(str(path), before, identity)
            return state
        unread = None in identity["inputs"].values()  # stdin and pipes have no digest
        return OutputState.NEW if before != identity or unread else state

    def _read_journal(self) -> dict[str, Any]:
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
        manifest = self.read_manifest()
        if "sha256" not in manifest or depends_on(manifest) is None:
            raise not_resumable(str(self.target.path))
        refuse_changed_file(self.output, manifest["sha256"])
        if "index" in manifest:
            refuse_changed_file(self.index, manifest.get("index_sha256"))
        return manifest

    def has_known_rows(self) -> bool:
        """Return True if output and index are those that the manifest describes.

        They are not after a kill amid the renames of `publish`: then no row is reused.
        """
        try:
            return "index" in self._unchanged()
        except OutputError:
            return False

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
        self.append(
            {RAW_VECTORS: vectors.astype("<f4", copy=False).tobytes(), FIELDS: lines.encode()}
        )

    def append(self, parts: Mapping[str, bytes]) -> None:
        """Add bytes to the files of the run, by their names."""
        for name, file in self.files.items():
            size, crc = self.journal["parts"].get(name, (0, 0))
            with explained(self.target.path):
                write_all(file, parts[name])
            self.journal["parts"][name] = size + len(parts[name]), crc32(parts[name], crc)

    def commit(self, state: Any) -> None:
        """Make all rows durable, with a JSON value for whoever resumes after them."""
        self.model.refuse_changes()
        with explained(self.target.path):
            for file in self.files.values():
                sync(file)
            self.journal |= {"state": state, "version": VERSION}
            with replacing(self.folder / JOURNAL, self.folder / SAVING) as file:
                file.write(json.dumps(self.journal).encode())

    def finish(self, about: Mapping[str, Any]) -> None:
        """Make the output and its manifest, which holds ``about``, and remove the folder.

        After a kill on the way the run is resumed from its last commit: commit before.
        """
        target, journal = self.target, self.journal
        index = self.folder / NEW_INDEX
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
            with self.new_file() as file:
                load(FORMATS[target.form].vector_writer)(file, target.form, rows)
            shape, dtype = rows.shape_and_dtype()
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
            self.publish_run(manifest)

    @contextmanager
    def new_file(self) -> Iterator[IO[bytes]]:
        """Yield the file that becomes the output; it is on the disk at the end."""
        new = self.folder / NEW_OUTPUT
        with explained(self.target.path), open(new, "wb", opener=opener(None)) as file:
            with (
                packed(self.output, file) as inner,
                json_array(self.target.path, self.target.form, inner) as rows_file,
            ):
                yield rows_file
            sync(file)

    def publish_run(self, about: Mapping[str, Any]) -> None:
        """Publish the new output, its index and its manifest, and remove the run folder."""
        target = self.target
        with explained(target.path):
            manifest = {
                **about,
                "bertcli": __version__,
                "fingerprint": self.journal["fingerprint"],
                "inputs": self.journal["inputs"],
                "output": self.output.name,
                "format": target.form,
                "sha256": sha256(self.folder / NEW_OUTPUT),
            }
            self.journal["overwrite"] = True  # from here on, the output may be this run's own
            self.commit(self.state)
            for file in self.files.values():
                file.close()  # Windows moves no open file
            self.publish(
                index=(self.folder / NEW_INDEX).exists(),
                manifest=json_text(manifest) if target.manifest else None,
            )
            self.clear()

    def end(self) -> None:
        """Remove the files of a run that has committed nothing."""
        if not self.is_interrupted:
            self.clear()


def put_json(path: Path, value: Any) -> None:
    """Write a JSON file that is whole, on the disk, or as it was."""
    with whole_file(path) as file:
        file.write(json_text(value))


def json_text(value: Any) -> bytes:
    """Return what stands in a journal or manifest."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    return text.encode(errors="backslashreplace")  # half of a surrogate pair, as JSON escapes it


def not_resumable(name: str) -> OutputError:
    """Return the refusal of an output that no run which can be resumed has made."""
    return OutputError(
        f"{name}: already exists, but has no manifest to resume from",
        f"give {option('overwrite')}, or choose another output",
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
    before, after = flat(was), flat(now)
    different = [
        f"{key} was {shown(before.get(key))}, now {shown(after.get(key))}"
        for key in dict.fromkeys([*after, *before])
        if before.get(key) != after.get(key)
    ]
    if different:
        raise OutputError(
            f"{name}: cannot resume a different run: {'; '.join(different)}",
            f"run the command as it was, or start over with {option('overwrite')}",
        )


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values of nested objects by their paths: `options.dim`."""
    values: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            values |= flat(inner, f"{before}{key}.")
        else:
            values[before + key] = inner
    return values


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

# Columns of `RecordBatch` that are digested: texts and pairs; with ids and other fields.
TEXTS, READ = 2, 4


class InputDigest:
    """The sha256 of the records so far, so that a changed input is noticed on resuming."""

    def __init__(self) -> None:
        self.columns, self.records = [hashlib.sha256() for _ in range(READ)], 0

    def add(self, records: Sequence[Record]) -> None:
        """Take in records, as they were read: the repr of each of their values."""
        for column, values in zip(self.columns, RecordBatch.of(records).columns, strict=False):
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


def files_of_model(folder: ModelFolder) -> dict[str, Any]:
    """Return the sha256 of the files of a model that decide what it makes of a text."""
    inner = folder.encoder
    return {"weights": inner.weights.digests, "tokenizer": tokenizer_of(inner)}


def files_of_results(folder: ModelFolder) -> dict[str, Any]:
    """Return the sha256 of all files of a model, for what is made by a head or with a search."""
    inner = folder.encoder
    graphs = [inner / name for name in GRAPHS.values()]
    graphs += [graph.with_suffix(".bin") for graph in graphs]
    hashed = {*inner.weights.all, *inner.tokenizer_files}
    others = [path for path in (*folder.model_files, *graphs) if path not in hashed]
    return files_of_model(folder) | {"settings": digests_of(folder, others)}


def files_of_tokenizer(folder: ModelFolder) -> dict[str, Any]:
    """Return the sha256 of the files that token ids depend on."""
    inner = folder.encoder
    configs = [inner / name for name in (*CONFIGS, *SENTENCE_CONFIGS)]
    configs += [folder / name for name in (*CONFIGS, *SENTENCE_CONFIGS)]
    return {"tokenizer": tokenizer_of(inner), "settings": digests_of(folder, configs)}


def digests_of(folder: ModelFolder, paths: Sequence[Path]) -> dict[str, str]:
    """Return the sha256 of those of the paths that are files, by their names within a folder."""
    files = dict.fromkeys(path for path in paths if path.is_file())
    return {path.relative_to(folder.path).as_posix(): sha256(path) for path in files}


def tokenizer_of(folder: ModelFolder) -> dict[str, str]:
    """Return the sha256 of the files of a folder that a tokenizer is made of, by name."""
    return {path.name: sha256(path) for path in folder.tokenizer_files}


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
    """The files that a run reads, ``-`` for stdin, or its texts; and what else it needs."""

    paths: Sequence[str] = ()
    texts: Sequence[str | None] = ()
    lists: Sequence[Path] = ()  # files with names of the paths
    cached: Sequence[Path] = ()  # vectors of the paths, which the run writes if they are missing
    model_files: Sequence[Path] = ()

    @classmethod
    def of(cls, source: Input, model: Sequence[Path]) -> Inputs:
        """Return what a run reads of a source, and the files of its model."""
        texts = source.texts if source.pair is None else (*source.texts, source.pair)
        lists = [Path(source.list_file)] if source.list_file else []
        return cls(source.paths, texts, lists, model_files=model)

    @property
    def streams(self) -> list[str]:
        """Those that can be read only once."""
        return [input_name(path) for path in self.paths if not can_be_reread(path)]

    def described(self) -> list[Described]:
        """Return name, size and sha256 of each. Raises InputError for one that is not there."""
        inputs = [self._file(path) for path in self.paths]
        inputs += [self._file(str(path)) for path in self.cached if path.exists()]
        if self.texts:
            digest = hashlib.sha256(repr(tuple(self.texts)).encode()).hexdigest()
            inputs.append({"name": ARGUMENTS, "bytes": None, "sha256": digest})
        return inputs

    def _file(self, path: str) -> Described:
        if not can_be_reread(path):
            return {"name": input_name(path), "bytes": None, "sha256": None}
        try:
            size = os.path.getsize(path)
            return {"name": input_name(path), "bytes": size, "sha256": sha256(Path(path))}
        except OSError as failed:
            raise unreadable(path, failed) from None


# --- rows of any other command ---

AT_ONCE = 4096  # rows that are read again together


@dataclass(frozen=True)
class RowTarget(Target):
    """An output of rows."""

    parts: ClassVar = (FIELDS,)

    @property
    def waits_finished(self) -> bool:
        """True if the waiting bytes are those of the output."""
        return self.form == FINISHED or FORMATS[self.form].is_json

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

            def commit() -> None:
                if run and run.done != sink.state and not inputs.streams:
                    sink.commit(run.done)
                    run.committed = sink.state["records"]

            def write(rows: Sequence[Any]) -> None:
                commit()
                headers.extend(row for row in rows if isinstance(row, TableHeader))
                if self.form == FINISHED:
                    data = b"".join(rows)
                else:
                    data = to_lines(lines_of(rows)).encode(errors=NAMES)
                sink.append({FIELDS: data})

            yield write
            commit()
            form = FINISHED if self.waits_finished else self.form
            with sink.new_file() as file, writer_of(form, to_file=True)(file) as put:
                for rows in self._waiting(sink.folder / FIELDS):
                    headers.clear()
                    put(rows)
                if headers and form != FINISHED:
                    put(headers)
            if run is None:
                sink.journal["inputs"] = inputs.described()  # with vectors that it has written
            sink.publish_run({"counts": asdict(run.tally)} if run else {})

    def _waiting(self, path: Path) -> Iterator[list[Any]]:
        """Yield the rows that wait, some at a time."""
        with path.open("rb") as lines:
            while some := [*islice(lines, AT_ONCE)]:
                yield [b"".join(some)] if self.waits_finished else [*map(parse, some)]
