"""Update a search index: skip unchanged files, and embed only new and changed texts.

    update = IndexUpdate.plan(Path("notes.index"), embedder, reader, ["notes/"], index)
    if not update.is_current:
        update.run().execute()
    print(update.summary(open_index(update.path)))
    # notes.index: 3 new, 1 changed, 2 deleted of 1,204 chunks

A file whose size, times and inode are unchanged is not read, unless it was modified just before it
was indexed. In that case, and if one of these differs, its sha256 decides whether it is unchanged.
(Windows has no change time, so a file with its old size and modification time counts as unchanged.)
All other files are read, and a vector is computed for each text whose digest is not in the index.
The new rows are written to the run folder ``notes.index.run/``, as by `embed --resume`, so that an
interrupted update continues. If the files have changed since, its vectors are reused by digest.
"""

from __future__ import annotations

import hashlib
import os
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice, repeat
from pathlib import Path
from stat import S_IMODE
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from bertcli.embedding.embedder import Embedder
from bertcli.errors import InputError, OutputError, counted, option
from bertcli.formats.arrays import ArrayParts, write_arrays
from bertcli.formats.jsonl import to_json
from bertcli.formats.registry import FORMATS
from bertcli.formats.vector_files import ROWS, Array, put_aside
from bertcli.formats.vector_writer import Fields, Rows
from bertcli.io.output_files import (
    NEW_INDEX,
    NEW_OUTPUT,
    NEW_ROWS,
    NEW_TEXTS,
    RAW_VECTORS,
    SAVING,
    OutputFiles,
)
from bertcli.io.paths import WatchedFiles, input_name, normalized, sha256
from bertcli.io.publish import MANIFEST, explained, move, replacing
from bertcli.io.system_calls import opener, sync, sync_folder
from bertcli.io.typed_json import as_json, shown
from bertcli.records.batch import RecordBatch
from bertcli.records.reader import Divide, Reader
from bertcli.records.record import is_empty
from bertcli.retrieval.lexical import Bm25, IndexFile, Postings, merge_postings
from bertcli.retrieval.search_index import (
    DELETE,
    ENDS,
    ROW_ARRAYS,
    ROWS_END,
    TEXTS_END,
    VECTORS_END,
    VERSION,
    VERSION_KEY,
    CorpusFile,
    RowArrays,
    SearchIndex,
    line_of,
    open_index,
    record_of,
)
from bertcli.runs.identity import Inputs, depends_on, flat
from bertcli.runs.run_folder import OutputState, json_text
from bertcli.runs.vector_run import VectorRun, VectorTarget, VectorWriter, made_by
from bertcli.versions import __version__

if TYPE_CHECKING:
    from bertcli.embedding.pooling import EmbeddedBlock

SETTLED = 2 * 10**9  # nanoseconds: the coarsest resolution of file times is 2 s (FAT)
DIGEST_BYTES = 16
COPIED = 1 << 20  # bytes copied at a time
NUMBER = "\0number"  # field with the number in its file of a record without an id
FILE, ENTRY, EMPTY = "file", "entry", "empty"  # keys of a row in the run folder
# Options of `Input`, by their names in manifests. A change of TEXT_OPTIONS is an error; after a
# change of OTHER_OPTIONS, all files are read again and vectors are reused.
TEXT_OPTIONS = ("format", "delimiter", "text_field", "join", "skip_empty")
OTHER_OPTIONS = ("keep", "id_field", "infer_types", "placed")
# Facts about the engine and batch sizes, which may differ between updates of an index.
ENGINE_FACTS = {"backend", "openvino", "cpu", "kernel", "device", "threads"}
ENGINE_FACTS |= {"batch_tokens", "window"}


class Section(NamedTuple):
    """Consecutive rows, of the old index or of the new rows."""

    is_new: bool
    first: int
    size: int


@dataclass
class FreshRows:
    """The rows of the new and changed files, with their texts in a file of lines."""

    vectors: Array
    arrays: RowArrays
    texts: IO[bytes]
    counts: Mapping[str, int]  # number of rows of each file


@dataclass
class IndexUpdate:
    """The planned update of an index to the current files of its corpus."""

    path: Path
    embedder: Embedder
    reader: Reader
    corpus: Sequence[str]  # paths as given by the user
    old: SearchIndex | None
    unchanged: dict[str, CorpusFile] = field(default_factory=dict)  # by name
    found: dict[str, CorpusFile] = field(default_factory=dict)  # all files now, without counts
    spellings: Mapping[str, str] = field(default_factory=dict)  # file name -> as given by the user
    is_current: bool = False
    new: int = 0  # rows
    changed: int = 0
    deleted: int = 0

    @classmethod
    def plan(
        cls,
        path: Path,
        embedder: Embedder,
        reader: Reader,
        corpus: Sequence[str],
        old: SearchIndex | None,
    ) -> IndexUpdate:
        """Return the update, after comparing the files of a corpus with its index, if there is one.

        Paths are normalized, so the spelling of the corpus does not matter. Raises InputError for
        an index of another corpus, or made with other options.
        """
        given_paths = reader.source.paths
        paths = tuple(map(normalized, given_paths))
        reader.source = replace(reader.source, paths=paths)
        update = cls(path, embedder, reader, corpus, old)
        names = zip(map(input_name, paths), map(input_name, given_paths), strict=True)
        update.spellings = {name: given for name, given in names if name != given}
        if old:
            update._refuse_other(old)
        update._compare_files()
        return update

    def _refuse_other(self, old: SearchIndex) -> None:
        corpus = old.manifest.object("corpus")
        paths = {*(corpus.texts("paths") or ())}
        files = {file.name for file in old.files}
        if files and files.isdisjoint(self.names) and paths.isdisjoint(self._corpus_paths):
            names = ", ".join(corpus.texts("names") or ())
            raise InputError(
                f"{self.path}: is the index of another corpus, {names}",
                f"give that {option('corpus')}, or another {option('index')}; "
                "delete the folder to make it again",
            )
        recorded_options = old.fingerprint.object("options") | dict(old.manifest.object("input"))
        refuse_other_options(self.path, recorded_options, as_json(self._options))

    @property
    def _corpus_paths(self) -> list[str]:
        return [input_name(os.path.realpath(name)) for name in self.corpus]

    def described_corpus(self) -> dict[str, list[str]]:
        """Return the entry of the corpus in the manifest: paths as given, and resolved."""
        return {"names": [input_name(name) for name in self.corpus], "paths": self._corpus_paths}

    @property
    def names(self) -> list[str]:
        """The names of the files, in the order of their rows."""
        return [input_name(path) for path in self.reader.source.paths]

    @property
    def _options(self) -> dict[str, Any]:
        """The options that determine the texts and their vectors."""
        options = self.reader.source.options
        return self.embedder.chosen() | {name: options[name] for name in TEXT_OPTIONS}

    @property
    def _other_options(self) -> dict[str, Any]:
        options = self.reader.source.options
        return {name: options[name] for name in OTHER_OPTIONS}

    def _compare_files(self) -> None:
        """Set the state of all files, and which are unchanged."""
        old = self.old
        known: dict[str, CorpusFile] = {}
        if old and old.manifest.object("read") == self._other_options:
            known = {file.name: file for file in old.files}
        source = self.reader.source
        for path in dict.fromkeys(source.paths):
            file = state_of(path, known.get(input_name(path)))
            self.found[file.name] = file
            before = known.get(file.name)
            if before and before.sha256 == file.sha256:
                file = replace(file, records=before.records, rows=before.rows)
                self.unchanged[file.name] = file
        is_current = old is not None and [file.name for file in old.files] == self.names
        self.is_current = is_current and len(self.unchanged) == len(self.found)
        is_delimited = any(FORMATS[source.format_of(path)].delimiter for path in source.paths)
        if not self.is_current and source.fields.keep is not None and is_delimited:
            self.unchanged.clear()  # types of fields are inferred from all files

    def run(self) -> IndexRun:
        """Return the run that reads the new and changed files and writes the index."""
        source = self.reader.source
        changed = self.found.keys() - self.unchanged.keys()
        paths = [path for path in dict.fromkeys(source.paths) if input_name(path) in changed]
        numbers = FileNumbers(self.reader.divide)
        fresh = Reader(replace(source, paths=tuple(paths)))
        fresh.divide_by(numbers, self.reader.unit)
        folder = Path(os.path.realpath(self.path))
        target = IndexTarget(folder / MANIFEST, "npy", update=True, plan=self, numbers=numbers)
        return IndexRun(self.embedder, fresh, target)

    def settle(self) -> None:
        """Write the current times of unchanged files to the manifest of a current index.

        Also remove an interrupted run. Errors are ignored; the next search tries again.
        """
        files = index_files(self.path)
        old = self.old
        assert old is not None
        present_files = [self.unchanged[name] for name in self.names]
        if present_files == old.files and not files.folder.exists():
            return
        entries = [asdict(file) for file in present_files]
        with suppress(OutputError, OSError), files.locked():
            present = open_index(self.path)
            if present and present.manifest == old.manifest:
                with replacing(files.manifest, files.folder / SAVING, mode_of(files)) as file:
                    file.write(json_text({**old.manifest, "files": entries}))
                remove_old_files(files.manifest.parent, present.tag)
            files.clear()

    def refuse_changes_while_read(self) -> None:
        """Raise InputError if a file that was read has changed since it was compared."""
        for path in dict.fromkeys(self.reader.source.paths):
            name = input_name(path)
            if name not in self.unchanged and version_of(path) != self.found[name].version:
                raise InputError(
                    f"{input_name(path)}: was changed while it was read", "run the command again"
                )

    def sections(self, fresh: FreshRows, numbers: FileNumbers) -> list[tuple[CorpusFile, Section]]:
        """Return the files of the corpus in order, each with the section of its rows."""
        first_old = dict[str, int]()
        if self.old:
            pairs = zip(self.old.files, self.old.first_rows, strict=True)
            first_old = {file.name: row for file, row in pairs}
        first_new = dict[str, int]()
        row = 0
        for name, count in fresh.counts.items():
            first_new[name] = row
            row += count
        sections = []
        for name in self.names:
            if name in self.unchanged:
                file = self.unchanged[name]
                sections.append((file, Section(False, first_old[name], file.rows)))
                continue
            rows = fresh.counts.get(name, 0)
            file = replace(self.found[name], records=numbers.records.get(name, 0), rows=rows)
            sections.append((file, Section(True, first_new.get(name, 0), rows)))
        return sections

    def count_changes(
        self, sections: Sequence[tuple[CorpusFile, Section]], fresh: FreshRows
    ) -> None:
        """Count new, changed and deleted rows.

        A row that is added to a file is changed, not new, for each row removed from the file.
        """
        before: dict[str, Counter[bytes]] = {}
        if self.old:
            for file, row in zip(self.old.files, self.old.first_rows, strict=True):
                if file.name not in self.unchanged:
                    before[file.name] = _digests(self.old.arrays, row, file.rows)
        after = {
            file.name: _digests(fresh.arrays, section.first, section.size)
            for file, section in sections
            if section.is_new
        }
        self.new = self.changed = self.deleted = 0
        for name in before | after:
            old = before.get(name, Counter())
            new = after.get(name, Counter())
            added = (new - old).total()
            removed = (old - new).total()
            changed = min(added, removed)
            self.new += added - changed
            self.changed += changed
            self.deleted += removed - changed

    def summary(self, index: SearchIndex) -> str:
        """Return a message with the number of rows and changes."""
        rows = counted(index.count, index.unit)
        if self.old is None:
            return f"{self.path}: {rows} of {counted(len(self.found), 'file')} indexed"
        return (
            f"{self.path}: {self.new:,} new, {self.changed:,} changed, {self.deleted:,} deleted "
            f"of {rows}"
        )


def refuse_other_options(
    path: Path, recorded: Mapping[str, Any], chosen: Mapping[str, Any]
) -> None:
    """Raise InputError, listing the differences, for an index made with other options."""
    before = flat(recorded)
    now = flat(chosen)
    different = [
        f"{name} was {shown(before.get(name))}, now {shown(now.get(name))}"
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name) and name.partition(".")[0] not in ENGINE_FACTS
    ]
    if different:
        raise InputError(
            f"{path}: was made with other options: {'; '.join(different)}",
            "run the command as it was, or delete the folder to make it again",
        )


def _digests(arrays: RowArrays, first: int, count: int) -> Counter[bytes]:
    return Counter(map(bytes, arrays.digests[first : first + count]))


# --- files of the corpus ---


def version_of(path: str) -> tuple[int, int, int, int]:
    """Return the size, times and inode of a file. Raises InputError."""
    try:
        status = os.stat(path)
    except OSError as failed:
        raise InputError(f"{input_name(path)}: {failed.strerror}") from None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def state_of(path: str, before: CorpusFile | None) -> CorpusFile:
    """Return the state of a file. It is read only if it may differ from its state ``before``.

    Raises InputError if it cannot be read.
    """
    now = time.time_ns()
    version = version_of(path)
    if before and before.settled and version == before.version:
        return before
    try:
        digest = sha256(Path(path))
    except OSError as failed:
        raise InputError(f"{input_name(path)}: {failed.strerror}") from None
    settled = max(version[1:3]) < now - SETTLED
    return CorpusFile(input_name(path), *version, settled, digest, records=0, rows=0)


class FileNumbers:
    """A function that numbers records without an id within their files, then calls ``divide``."""

    def __init__(self, divide: Divide | None) -> None:
        self.divide = divide
        self.first: dict[str, int] = {}
        self.records: dict[str, int] = {}  # records of each file so far

    def __call__(self, reader: Reader, block: RecordBatch, first: int) -> Iterable[RecordBatch]:
        """Return the numbered and divided records of a block, all of one file."""
        if not len(block):
            return [block]
        start = self.first.setdefault(block.files[0], first)
        self.records[block.files[0]] = first + len(block) - start
        ids = block.ids or repeat(None, len(block))
        extras: list[dict[str, Any] | None] = []
        for number, (key, extra) in enumerate(
            zip(ids, block.extras or repeat(None), strict=False), first - start
        ):
            extras.append(extra if key is not None else {**(extra or {}), NUMBER: number})
        numbered = replace(block, extras=extras if any(extras) else None)
        return self.divide(reader, numbered, first) if self.divide else [numbered]


# --- writing ---


def index_files(path: Path) -> OutputFiles:
    """Return the paths of the lock, the run folder and the manifest of an index."""
    files = OutputFiles(path)
    files.manifest = files.output / MANIFEST
    return files


def mode_of(files: OutputFiles) -> int | None:
    """Return the permissions of the files of an index; None if there is none yet."""
    try:
        return S_IMODE(files.manifest.stat().st_mode)
    except OSError:
        return None


class IndexRun(VectorRun):
    """A run that embeds the new and changed files of a corpus."""

    def known_rows(self, writer: VectorWriter) -> tuple[dict[str, int], Array]:
        """Return the known rows by digest, and their vectors.

        They are the rows of an abandoned run, then those of the old index.
        """
        assert isinstance(writer, IndexWriter)
        old = writer.plan.old
        digests, vectors = writer.abandoned or ([], self.embedder.nothing)
        rows = {digest: row for row, digest in enumerate(digests)}
        if old is None:
            return rows, vectors
        text = old.arrays.digests.tobytes().hex()
        size = 2 * DIGEST_BYTES
        count = len(vectors)
        for row in range(old.count):
            rows.setdefault(text[row * size : (row + 1) * size], row + count)
        if not count:
            return rows, old.vectors
        return rows, put_aside(chain([vectors], old.blocks(vectors.shape[1])))


@dataclass(frozen=True)
class IndexTarget(VectorTarget):
    """The manifest of an index, as the target of a run."""

    plan: IndexUpdate = field(kw_only=True)
    numbers: FileNumbers = field(kw_only=True)

    def fields_of(self, block: EmbeddedBlock) -> Fields:
        """Return the stored fields of records: file, line of the index, and True if empty."""
        entries = []
        for record in block.records:
            extra = dict(record.extra or {})
            number = extra.pop(NUMBER, None)
            entry = line_of(record._replace(extra=extra), number)
            entries.append({FILE: record.file, EMPTY: is_empty(record), ENTRY: entry})
        return Fields(len(entries), others=entries)

    def writer(self, model: WatchedFiles) -> IndexWriter:
        """Return the writer of the rows and of the index."""
        return IndexWriter(self, model)


class IndexWriter(VectorWriter):
    """A writer of new rows, which then writes an index of the new rows and the kept old rows."""

    target: IndexTarget

    def __init__(self, target: IndexTarget, model: WatchedFiles) -> None:
        super().__init__(target, model)
        self.plan = target.plan
        files = index_files(self.plan.path)
        self.path = files.path
        self.root = files.output
        self.output = self.manifest = files.manifest
        self.folder = files.folder
        self.lock = files.lock
        self.index = self.folder / NEW_INDEX
        # Digests and vectors of an interrupted run whose files have changed since.
        self.abandoned: tuple[list[str], Array] | None = None

    def refuse_foreign_files(self, *, manifest: bool, index: bool) -> None:
        """Raise InputError for a folder that is not an index."""
        open_index(self.path)

    def output_state(self, identity: Mapping[str, Any], inputs: Inputs) -> OutputState:
        """Return INTERRUPTED for an interrupted run over the same files, else NEW or CHANGED."""
        try:
            journal = self._read_journal()
        except OutputError:  # journal of another version
            return OutputState.NEW
        if not journal:
            return OutputState.NEW
        if depends_on(journal) == identity:
            return OutputState.INTERRUPTED
        self.abandoned = self._committed(journal)
        return OutputState.CHANGED

    def _committed(self, journal: dict[str, Any]) -> tuple[list[str], Array] | None:
        """Return the digests and vectors committed by another run; None if there are none.

        They are verified as for a resumed run.
        """
        fresh_journal = self.journal
        self.journal = journal
        try:
            for name in self.target.row_files:
                self.appended(name).close()
        except (OutputError, OSError):
            return None
        finally:
            self.journal = fresh_journal
        rows = rows_in(self.folder, journal)
        digests = [*chain.from_iterable(fields.digests or () for fields in rows.fields())]
        if not rows.count or len(digests) != rows.count:
            return None
        return digests, put_aside(rows.raw())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the index and remove the run folder.

        Commit before calling this: if it is killed, the run resumes from the last commit.
        """
        self.plan.refuse_changes_while_read()
        rows = rows_in(self.folder, self.journal)
        with explained(self.path), fresh_rows(self.folder / NEW_INDEX, rows) as fresh:
            sections = self.plan.sections(fresh, self.target.numbers)
            self.plan.count_changes(sections, fresh)
            pieces = [section for _, section in sections if section.size]
            self._write_vectors(pieces, fresh)
            self._write_texts(pieces, fresh)
            self._write_rows(pieces, fresh)
            self._publish(summary, [file for file, _ in sections], pieces, fresh)
        with explained(self.path):
            for file in self.files.values():
                file.close()  # Windows cannot remove an open file
            self.clear()

    def _write_vectors(self, pieces: Sequence[Section], fresh: FreshRows) -> None:
        width = self.plan.embedder.nothing.shape[1]

        def parts() -> Iterator[bytes]:
            for section in pieces:
                vectors = self._rows_of(section, fresh).vectors
                for start in range(section.first, section.first + section.size, ROWS):
                    stop = min(start + ROWS, section.first + section.size)
                    yield np.asarray(vectors[start:stop], "<f4").tobytes()

        with synced_file(self.folder / NEW_OUTPUT) as file:
            shape = (sum(section.size for section in pieces), width)
            write_arrays(file, "npy", {"": ArrayParts("<f4", shape, parts())})

    def _write_texts(self, pieces: Sequence[Section], fresh: FreshRows) -> None:
        with synced_file(self.folder / NEW_TEXTS) as file:
            for section in pieces:
                rows = self._rows_of(section, fresh)
                begin = int(rows.arrays.offsets[section.first])
                left = int(rows.arrays.offsets[section.first + section.size]) - begin
                rows.texts.seek(begin)
                while left:
                    block = rows.texts.read(min(COPIED, left))
                    if not block:
                        raise InputError(f"{self.path}: was changed while it was read", DELETE)
                    file.write(block)
                    left -= len(block)

    def _write_rows(self, pieces: Sequence[Section], fresh: FreshRows) -> None:
        parts = [fresh.arrays.taken(0, 0)]
        for section in pieces:
            arrays = self._rows_of(section, fresh).arrays
            parts.append(arrays.taken(section.first, section.first + section.size))
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in ROW_ARRAYS
        }
        sizes = [np.diff(part.offsets) for part in parts]
        columns["offsets"] = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        arrays_of_file = {
            name: ArrayParts(dtype, columns[name].shape, [columns[name].astype(dtype).tobytes()])
            for name, dtype in ROW_ARRAYS.items()
        }
        with synced_file(self.folder / NEW_ROWS) as file:
            write_arrays(file, "npz", arrays_of_file)

    def _rows_of(self, section: Section, fresh: FreshRows) -> FreshRows | SearchIndex:
        """Return the source of the rows of a section: the new rows or the old index."""
        old = self.plan.old
        return fresh if section.is_new or old is None else old

    def _merged_terms(self, pieces: Sequence[Section], fresh: FreshRows) -> Postings | None:
        """Return the postings of the new index; None if the old one has none."""
        old = self.plan.old
        postings = old.stored_terms() if old else None
        if postings is None:
            return None
        index = Bm25(self.plan.embedder.runtime.tokenizer)
        fresh.texts.seek(0)
        while lines := [*islice(fresh.texts, ROWS)]:
            index.add([record_of(line, str(self.path))[0] for line in lines])
        parts = []
        for is_new, stored in ((False, postings), (True, index.postings)):
            maps = new_rows(pieces, len(stored.lengths), is_new=is_new)
            parts += [(stored, mapping) for mapping in maps]
        return merge_postings(parts, sum(section.size for section in pieces))

    def _publish(
        self,
        summary: Mapping[str, Any],
        files: Sequence[CorpusFile],
        pieces: Sequence[Section],
        fresh: FreshRows,
    ) -> None:
        """Move the new files to the index, the manifest last, and remove the old files."""
        plan = self.plan
        new_files = {"vectors": NEW_OUTPUT, "texts": NEW_TEXTS, "rows": NEW_ROWS}
        digests = {name: sha256(self.folder / file) for name, file in new_files.items()}
        tag = hashlib.sha256("".join(digests.values()).encode()).hexdigest()[:16]
        options = plan.reader.source.options
        manifest = {
            VERSION_KEY: VERSION,
            "bertcli": __version__,
            "versions": summary["versions"],
            "same_bits": summary["same_bits"],
            "fingerprint": made_by(plan.embedder),
            "corpus": plan.described_corpus(),
            "input": {name: options[name] for name in TEXT_OPTIONS},
            "read": {name: options[name] for name in OTHER_OPTIONS},
            "chunks": plan.embedder.chunks,
            "rows": sum(section.size for section in pieces),
            "files": [asdict(file) for file in files],
            "tag": tag,
            "sha256": digests,
        }
        mode = mode_of(index_files(plan.path))
        self.root.mkdir(exist_ok=True)
        ends = {"vectors": VECTORS_END, "texts": TEXTS_END, "rows": ROWS_END}
        postings = self._merged_terms(pieces, fresh)
        for name, file_name in new_files.items():
            move(self.folder / file_name, self.root / f"{tag}{ends[name]}", mode)
        if postings:
            vectors = self.root / f"{tag}{VECTORS_END}"
            IndexFile(vectors, digests["vectors"], digests["texts"]).write(postings)
        sync_folder(self.root)
        with replacing(self.manifest, self.folder / SAVING, mode) as file:
            file.write(json_text(manifest))
        remove_old_files(self.root, tag)


def remove_old_files(folder: Path, tag: str) -> None:
    """Remove all files of an index except those with this tag."""
    for name in os.listdir(folder):
        if name.endswith(ENDS) and not name.startswith(f"{tag}."):
            with suppress(OSError):  # open file on Windows: removed by the next update
                (folder / name).unlink()


def rows_in(folder: Path, journal: Mapping[str, Any]) -> Rows:
    """Return the rows committed by a run."""
    return Rows(folder, journal["rows"], journal["records"], tuple(journal["shape"]), "float32")


@contextmanager
def synced_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file, which is synced to disk at the end."""
    with open(path, "wb", opener=opener(None)) as file:
        yield file
        sync(file)


@contextmanager
def fresh_rows(path: Path, rows: Rows) -> Iterator[FreshRows]:
    """Yield the rows of a run, writing their texts to a file of lines at ``path``."""
    offsets = array("q", [0])
    checksums = array("L")
    digests = bytearray()
    empty = bytearray()
    counts: Counter[str] = Counter()
    with open(path, "w+b", opener=opener(None)) as texts:
        for fields in rows.fields():
            for entry, digest in zip(fields.others or (), fields.digests or (), strict=True):
                assert entry is not None
                line = to_json(entry[ENTRY]).encode()
                texts.write(line)
                offsets.append(offsets[-1] + len(line))
                checksums.append(crc32(line))
                digests += bytes.fromhex(digest)
                empty.append(entry[EMPTY])
                counts[entry[FILE]] += 1
        texts.flush()
        width = rows.shape[-1]
        vectors: Array = np.zeros((0, width), np.float32)
        if rows.count:
            raw = rows.folder / RAW_VECTORS
            vectors = np.memmap(raw, "<f4", "r", shape=(rows.count, width))
        arrays = RowArrays(
            np.array(offsets, np.int64),
            np.array(checksums, np.uint32),
            np.frombuffer(bytes(digests), np.uint8).reshape(-1, DIGEST_BYTES),
            np.frombuffer(bytes(empty), np.uint8),
        )
        yield FreshRows(vectors, arrays, texts, counts)


def new_rows(pieces: Sequence[Section], size: int, *, is_new: bool) -> list[Array]:
    """Return maps from the ``size`` old or new rows to rows of the new index, int64 [size].

    -1 means that a row is not in the new index. There are several maps if a file is several times
    in the corpus. ``is_new`` selects the sections of new rows.
    """
    maps = [np.full(size, -1, np.int64)]
    row = 0
    for section in pieces:
        if section.is_new == is_new:
            place = slice(section.first, section.first + section.size)
            if (maps[-1][place] >= 0).any():
                maps.append(np.full(size, -1, np.int64))
            maps[-1][place] = np.arange(row, row + section.size)
        row += section.size
    return maps
