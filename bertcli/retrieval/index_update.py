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
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice, repeat
from pathlib import Path
from stat import S_IMODE
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.errors import InputError, OutputError, counted, option
from bertcli.formats.arrays import ArrayToWrite, write_arrays
from bertcli.formats.jsonl import to_json
from bertcli.formats.registry import FORMATS
from bertcli.formats.vector_files import ROWS_PER_BLOCK, Array, memory_mapped
from bertcli.formats.vector_writer import OutputFields, StoredRows
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
from bertcli.io.publish import MANIFEST, converting_os_errors, move, replacing
from bertcli.io.system_calls import opener, sync, sync_folder
from bertcli.io.typed_json import as_json
from bertcli.records.batch import RecordBatch
from bertcli.records.reader import Divide, Reader
from bertcli.records.record import is_empty
from bertcli.retrieval.lexical import Bm25, Bm25File, Postings, merge_postings
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
from bertcli.runs.identity import Inputs, changes, identity_of
from bertcli.runs.run_folder import OutputState, json_text
from bertcli.runs.vector_run import VectorRun, VectorTarget, VectorWriter, vector_fingerprint
from bertcli.versions import __version__

if TYPE_CHECKING:
    from bertcli.embedding.pooling import EmbeddedBlock

SETTLED_NS = 2 * 10**9  # nanoseconds: the coarsest resolution of file times is 2 s (FAT)
DIGEST_BYTES = 16
COPY_BYTES = 1 << 20  # bytes copied at a time
NUMBER = "\0number"  # field with the number of a record without an id, within its file
# Keys of a row in the run folder.
FILE = "file"
ENTRY = "entry"
EMPTY = "empty"
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
    embedder: RecordEmbedder
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
        embedder: RecordEmbedder,
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
        reader = copy(reader)
        reader.source = replace(reader.source, paths=paths)
        update = cls(path, embedder, reader, corpus, old)
        names = zip(map(input_name, paths), map(input_name, given_paths), strict=True)
        update.spellings = {name: given for name, given in names if name != given}
        if old:
            update._refuse_other(old)
        update._compare_files()
        return update

    def _refuse_other(self, old: SearchIndex) -> None:
        """Raise InputError if the index is of another corpus, or made with other options."""
        corpus = old.manifest.object("corpus")
        paths = set(corpus.texts("paths") or ())
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
        """The resolved paths of the corpus, as in the manifest."""
        return [input_name(os.path.realpath(name)) for name in self.corpus]

    def corpus_entry(self) -> dict[str, list[str]]:
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
        return self.embedder.vector_settings() | {name: options[name] for name in TEXT_OPTIONS}

    @property
    def _other_options(self) -> dict[str, Any]:
        """The options whose change requires that all files are read again."""
        options = self.reader.source.options
        return {name: options[name] for name in OTHER_OPTIONS}

    def _compare_files(self) -> None:
        """Set `found`, `unchanged` and `is_current`."""
        old = self.old
        old_files: dict[str, CorpusFile] = {}  # those whose rows can be kept, by name
        if old and old.manifest.object("read") == self._other_options:
            old_files = {file.name: file for file in old.files}
        source = self.reader.source
        for path in dict.fromkeys(source.paths):
            old_file = old_files.get(input_name(path))
            file = file_state(path, old_file)
            self.found[file.name] = file
            if old_file and old_file.sha256 == file.sha256:
                file = replace(file, records=old_file.records, rows=old_file.rows)
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
        reader = Reader(replace(source, paths=tuple(paths)))
        reader.divide_by(numbers, self.reader.unit)
        folder = Path(os.path.realpath(self.path))
        target = IndexTarget(folder / MANIFEST, "npy", update=True, plan=self, numbers=numbers)
        return IndexRun(self.embedder, reader, target)

    def update_file_times(self) -> None:
        """Write the current times of unchanged files to the manifest of a current index.

        Also remove an interrupted run. Errors are ignored; the next search tries again.
        """
        files = index_files(self.path)
        old = self.old
        assert old is not None
        current_files = [self.unchanged[name] for name in self.names]
        if current_files == old.files and not files.folder.exists():
            return
        entries = [asdict(file) for file in current_files]
        with suppress(OutputError, OSError), files.locked():
            current_index = open_index(self.path)
            if current_index and current_index.manifest == old.manifest:
                with replacing(files.manifest, files.folder / SAVING, mode_of(files)) as file:
                    file.write(json_text({**old.manifest, "files": entries}))
                remove_old_files(files.manifest.parent, current_index.tag)
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
        old_first_rows: dict[str, int] = {}
        if self.old:
            pairs = zip(self.old.files, self.old.first_rows, strict=True)
            old_first_rows = {file.name: row for file, row in pairs}
        new_first_rows: dict[str, int] = {}
        row = 0
        for name, count in fresh.counts.items():
            new_first_rows[name] = row
            row += count
        sections = []
        for name in self.names:
            if name in self.unchanged:
                file = self.unchanged[name]
                sections.append((file, Section(False, old_first_rows[name], file.rows)))
                continue
            rows = fresh.counts.get(name, 0)
            file = replace(self.found[name], records=numbers.records.get(name, 0), rows=rows)
            sections.append((file, Section(True, new_first_rows.get(name, 0), rows)))
        return sections

    def count_changes(
        self, sections: Sequence[tuple[CorpusFile, Section]], fresh: FreshRows
    ) -> None:
        """Count new, changed and deleted rows.

        A row that is added to a file is changed, not new, for each row removed from the file.
        """
        old_digests: dict[str, Counter[bytes]] = {}
        if self.old:
            for file, row in zip(self.old.files, self.old.first_rows, strict=True):
                if file.name not in self.unchanged:
                    old_digests[file.name] = _digests(self.old.arrays, row, file.rows)
        new_digests = {
            file.name: _digests(fresh.arrays, section.first, section.size)
            for file, section in sections
            if section.is_new
        }
        self.new = 0
        self.changed = 0
        self.deleted = 0
        for name in old_digests | new_digests:
            old = old_digests.get(name, Counter())
            new = new_digests.get(name, Counter())
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


def refuse_other_options(path: Path, recorded: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise InputError, listing the differences, for an index made with other options."""
    differences = changes(recorded, given, ignored=ENGINE_FACTS)
    if differences:
        raise InputError(
            f"{path}: was made with other options: {'; '.join(differences)}",
            "run the command as it was, or delete the folder to make it again",
        )


def _digests(arrays: RowArrays, first: int, count: int) -> Counter[bytes]:
    """Return how often each text digest occurs in ``count`` rows from ``first``."""
    return Counter(map(bytes, arrays.digests[first : first + count]))


# --- files of the corpus ---


def version_of(path: str) -> tuple[int, int, int, int]:
    """Return the size, times and inode of a file. Raises InputError if it is missing."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{input_name(path)}: {error.strerror}") from None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def file_state(path: str, indexed: CorpusFile | None) -> CorpusFile:
    """Return the state of a file. It is read only if it may differ from its ``indexed`` state.

    Raises InputError if it cannot be read.
    """
    now = time.time_ns()
    version = version_of(path)
    if indexed and indexed.settled and version == indexed.version:
        return indexed
    try:
        digest = sha256(Path(path))
    except OSError as error:
        raise InputError(f"{input_name(path)}: {error.strerror}") from None
    settled = max(version[1:3]) < now - SETTLED_NS
    return CorpusFile(input_name(path), *version, settled, digest, records=0, rows=0)


class FileNumbers:
    """A function that numbers records without an id within their files, then calls ``divide``."""

    def __init__(self, divide: Divide | None) -> None:
        self.divide = divide
        self.first_records: dict[str, int] = {}  # number of each file's first record in the run
        self.records: dict[str, int] = {}  # records of each file so far

    def __call__(self, reader: Reader, block: RecordBatch, first: int) -> Iterable[RecordBatch]:
        """Return the numbered and divided records of a block, all of one file."""
        if not len(block):
            return [block]
        start = self.first_records.setdefault(block.files[0], first)
        self.records[block.files[0]] = first + len(block) - start
        ids = block.ids or repeat(None, len(block))
        pairs = zip(ids, block.extras or repeat(None), strict=False)
        numbered_fields: list[dict[str, Any] | None] = []
        for number, (key, fields) in enumerate(pairs, first - start):
            if key is None:
                fields = {**(fields or {}), NUMBER: number}
            numbered_fields.append(fields)
        numbered = replace(block, extras=numbered_fields if any(numbered_fields) else None)
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
        digests, vectors = writer.abandoned or ([], self.embedder.empty_output)
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
        return rows, memory_mapped(chain([vectors], old.blocks(vectors.shape[1])))


@dataclass(frozen=True)
class IndexTarget(VectorTarget):
    """The manifest of an index, as the target of a run."""

    plan: IndexUpdate = field(kw_only=True)
    numbers: FileNumbers = field(kw_only=True)

    def fields_of(self, block: EmbeddedBlock) -> OutputFields:
        """Return the stored fields of records: file, line of the index, and True if empty."""
        entries = []
        for record in block.records:
            carried = dict(record.extra or {})
            number = carried.pop(NUMBER, None)
            entry = line_of(record._replace(extra=carried), number)
            entries.append({FILE: record.file, EMPTY: is_empty(record), ENTRY: entry})
        return OutputFields(len(entries), others=entries)

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
        self.output = files.manifest
        self.manifest = files.manifest
        self.folder = files.folder
        self.lock = files.lock
        self.index = self.folder / NEW_INDEX
        # Digests and vectors of an interrupted run whose files have changed since.
        self.abandoned: tuple[list[str], Array] | None = None

    def refuse_foreign_files(self, *, manifest: bool, index: bool) -> None:
        """Raise InputError for a folder that is not an index."""
        open_index(self.path)

    def find_output_state(self, identity: Mapping[str, Any], inputs: Inputs) -> OutputState:
        """Return INTERRUPTED for an interrupted run over the same files, else NEW or CHANGED."""
        try:
            journal = self._read_journal()
        except OutputError:  # journal of another version
            return OutputState.NEW
        if not journal:
            return OutputState.NEW
        if identity_of(journal) == identity:
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
                self.open_for_appending(name).close()
        except (OutputError, OSError):
            return None
        finally:
            self.journal = fresh_journal
        rows = rows_in(self.folder, journal)
        digests = list(chain.from_iterable(fields.digests or () for fields in rows.fields()))
        if not rows.count or len(digests) != rows.count:
            return None
        return digests, memory_mapped(rows.float_chunks())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the index and remove the run folder.

        Commit before calling this: if it is killed, the run resumes from the last commit.
        """
        self.plan.refuse_changes_while_read()
        rows = rows_in(self.folder, self.journal)
        with converting_os_errors(self.path), fresh_rows(self.folder / NEW_INDEX, rows) as fresh:
            file_sections = self.plan.sections(fresh, self.target.numbers)
            self.plan.count_changes(file_sections, fresh)
            sections = [section for _, section in file_sections if section.size]
            self._write_vectors(sections, fresh)
            self._write_texts(sections, fresh)
            self._write_rows(sections, fresh)
            self._publish(summary, [file for file, _ in file_sections], sections, fresh)
        with converting_os_errors(self.path):
            for file in self.files.values():
                file.close()  # Windows cannot remove an open file
            self.clear()

    def _write_vectors(self, sections: Sequence[Section], fresh: FreshRows) -> None:
        """Write the vectors of the new index."""
        width = self.plan.embedder.empty_output.shape[1]

        def blocks() -> Iterator[bytes]:
            for section in sections:
                vectors = self._rows_of(section, fresh).vectors
                for start in range(section.first, section.first + section.size, ROWS_PER_BLOCK):
                    stop = min(start + ROWS_PER_BLOCK, section.first + section.size)
                    yield np.asarray(vectors[start:stop], "<f4").tobytes()

        with synced_file(self.folder / NEW_OUTPUT) as file:
            shape = (sum(section.size for section in sections), width)
            write_arrays(file, "npy", {"": ArrayToWrite("<f4", shape, blocks())})

    def _write_texts(self, sections: Sequence[Section], fresh: FreshRows) -> None:
        """Copy the lines of the new index."""
        with synced_file(self.folder / NEW_TEXTS) as file:
            for section in sections:
                rows = self._rows_of(section, fresh)
                start = int(rows.arrays.offsets[section.first])
                remaining = int(rows.arrays.offsets[section.first + section.size]) - start
                rows.texts.seek(start)
                while remaining:
                    block = rows.texts.read(min(COPY_BYTES, remaining))
                    if not block:
                        raise InputError(f"{self.path}: was changed while it was read", DELETE)
                    file.write(block)
                    remaining -= len(block)

    def _write_rows(self, sections: Sequence[Section], fresh: FreshRows) -> None:
        """Write the arrays of the new index; offsets are those of its own lines."""
        section_arrays = [fresh.arrays.taken(0, 0)]
        for section in sections:
            arrays = self._rows_of(section, fresh).arrays
            section_arrays.append(arrays.taken(section.first, section.first + section.size))
        columns = {}
        for name in ROW_ARRAYS:
            columns[name] = np.concatenate([getattr(arrays, name) for arrays in section_arrays])
        sizes = [np.diff(arrays.offsets) for arrays in section_arrays]
        columns["offsets"] = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        arrays_of_file = {
            name: ArrayToWrite(dtype, columns[name].shape, [columns[name].astype(dtype).tobytes()])
            for name, dtype in ROW_ARRAYS.items()
        }
        with synced_file(self.folder / NEW_ROWS) as file:
            write_arrays(file, "npz", arrays_of_file)

    def _rows_of(self, section: Section, fresh: FreshRows) -> FreshRows | SearchIndex:
        """Return the source of the rows of a section: the new rows or the old index."""
        old = self.plan.old
        return fresh if section.is_new or old is None else old

    def _merged_terms(self, sections: Sequence[Section], fresh: FreshRows) -> Postings | None:
        """Return the postings of the new index; None if the old one has none."""
        old = self.plan.old
        postings = old.stored_postings() if old else None
        if postings is None:
            return None
        index = Bm25(self.plan.embedder.runtime.tokenizer)
        fresh.texts.seek(0)
        while lines := list(islice(fresh.texts, ROWS_PER_BLOCK)):
            index.add([record_of(line, str(self.path))[0] for line in lines])
        mapped_postings = []
        for is_new, stored in ((False, postings), (True, index.postings)):
            maps = row_maps(sections, len(stored.lengths), is_new=is_new)
            mapped_postings += [(stored, row_map) for row_map in maps]
        return merge_postings(mapped_postings, sum(section.size for section in sections))

    def _publish(
        self,
        summary: Mapping[str, Any],
        files: Sequence[CorpusFile],
        sections: Sequence[Section],
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
            "fingerprint": vector_fingerprint(plan.embedder),
            "corpus": plan.corpus_entry(),
            "input": {name: options[name] for name in TEXT_OPTIONS},
            "read": {name: options[name] for name in OTHER_OPTIONS},
            "chunks": plan.embedder.makes_chunks,
            "rows": sum(section.size for section in sections),
            "files": [asdict(file) for file in files],
            "tag": tag,
            "sha256": digests,
        }
        mode = mode_of(index_files(plan.path))
        self.root.mkdir(exist_ok=True)
        ends = {"vectors": VECTORS_END, "texts": TEXTS_END, "rows": ROWS_END}
        postings = self._merged_terms(sections, fresh)
        for name, file_name in new_files.items():
            move(self.folder / file_name, self.root / f"{tag}{ends[name]}", mode)
        if postings:
            vectors = self.root / f"{tag}{VECTORS_END}"
            Bm25File(vectors, digests["vectors"], digests["texts"]).write(postings)
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


def rows_in(folder: Path, journal: Mapping[str, Any]) -> StoredRows:
    """Return the rows committed by a run."""
    return StoredRows(
        folder, journal["rows"], journal["records"], tuple(journal["shape"]), "float32"
    )


@contextmanager
def synced_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file, which is synced to disk at the end."""
    with open(path, "wb", opener=opener(None)) as file:
        yield file
        sync(file)


@contextmanager
def fresh_rows(path: Path, rows: StoredRows) -> Iterator[FreshRows]:
    """Yield the rows of a run, writing their texts to a file of lines at ``path``."""
    offsets = array("q", [0])
    checksums = array("L")
    digests = bytearray()
    is_empty_text = bytearray()
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
                is_empty_text.append(entry[EMPTY])
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
            np.frombuffer(bytes(is_empty_text), np.uint8),
        )
        yield FreshRows(vectors, arrays, texts, counts)


def row_maps(sections: Sequence[Section], size: int, *, is_new: bool) -> list[Array]:
    """Return maps from the ``size`` old or new rows to rows of the new index, int64 [size].

    -1 means that a row is not in the new index. There are several maps if a file is several times
    in the corpus. ``is_new`` selects the sections of new rows.
    """
    maps = [np.full(size, -1, np.int64)]
    row = 0
    for section in sections:
        if section.is_new == is_new:
            rows = slice(section.first, section.first + section.size)
            if (maps[-1][rows] >= 0).any():
                maps.append(np.full(size, -1, np.int64))
            maps[-1][rows] = np.arange(row, row + section.size)
        row += section.size
    return maps
