"""A search index: a folder with the vectors, texts and terms of a corpus.

    notes.index/
        manifest.json              the model, the options, the files of the corpus, and the names
                                   of the current files below
        TAG.vectors.npy            float32 [n, D]: one row per text or chunk
        TAG.texts.index.jsonl      one line per row: its text, id and other fields
        TAG.rows.npz               per row: offset and checksum of its line, digest of its text,
                                   and 1 if the text is empty
        TAG.vectors.npy.terms.npz  BM25 index of the texts, written when a search first needs it

    index = open_index(Path("notes.index"))
    index.record(3).text

An index is read without its corpus; `index_update` writes it. New files have a new TAG, and the
manifest is replaced last, atomically, so a reader finds either the old or the new index complete. A
reader whose files are removed before it opens them reads the new manifest and tries again.

Letters: `n` rows, `D` dimensions.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from weakref import finalize
from zlib import crc32

import numpy as np

from bertcli.errors import InputError, option
from bertcli.formats.arrays import open_arrays
from bertcli.formats.jsonl import object_in, value_of
from bertcli.formats.vector_files import ROWS_PER_BLOCK, SAME_MODEL, Array
from bertcli.io.paths import sha256, sha256_of
from bertcli.io.publish import MANIFEST
from bertcli.io.streams import unreadable
from bertcli.io.threads import checked, in_background
from bertcli.io.typed_json import SWITCH, TEXT, JsonObject, read_object, whole_number
from bertcli.records.input import ORIGIN
from bertcli.records.record import Record
from bertcli.records.record_fields import kept_fields, names_to_keep
from bertcli.retrieval.corpus import HitTexts, Texts
from bertcli.retrieval.lexical import Bm25, Bm25File, Postings
from bertcli.tokenizing.tokenizer import Tokenizer

VERSION = 1  # version of the folder format
VERSION_KEY = "search_index"  # key of the version in the manifest
VECTORS_END = ".vectors.npy"
TEXTS_END = ".texts.index.jsonl"
ROWS_END = ".rows.npz"
TERMS_END = ".vectors.npy.terms.npz"
ENDS = (VECTORS_END, TEXTS_END, ROWS_END, TERMS_END)
DELETE = "delete the folder: the next search makes it again"
ATTEMPTS = 10  # to open an index that another process is replacing
ROWS_PER_READ = 1024  # rows whose lines are read together


@dataclass(frozen=True)
class CorpusFile:
    """The state of a corpus file when it was indexed, with its number of records and rows.

    A file is ``settled`` if it was older than the resolution of file times, so that any later
    change is visible in its times.
    """

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    settled: bool
    sha256: str
    records: int
    rows: int

    @classmethod
    def of(cls, entry: JsonObject) -> CorpusFile:
        """Return the file of an entry in the manifest. Raises InputError for an invalid entry."""
        return cls(**{name: entry.needed(name, check) for name, check in FILE_CHECKS.items()})

    @property
    def version(self) -> tuple[int, int, int, int]:
        """Size, times of modification and change (ns), inode: they differ if the contents do."""
        return self.size, self.mtime_ns, self.ctime_ns, self.inode


COUNT = whole_number(0, 2**63)
NANOSECONDS = whole_number(-(2**63), 2**63)  # since 1970
FILE_CHECKS = {
    "name": TEXT,
    "size": COUNT,
    "mtime_ns": NANOSECONDS,
    "ctime_ns": NANOSECONDS,
    "inode": whole_number(0, 2**128),
    "settled": SWITCH,
    "sha256": TEXT,
    "records": COUNT,
    "rows": COUNT,
}


class RowArrays:
    """The data of each row besides its vector and its text."""

    def __init__(self, offsets: Array, checksums: Array, digests: Array, empty: Array) -> None:
        self.offsets = offsets  # int64 [n + 1]: byte offset of each line
        self.checksums = checksums  # uint32 [n]: CRC-32 of each line
        self.digests = digests  # uint8 [n, 16]: of each text and what determines its vector
        self.empty = empty  # uint8 [n]: 1 for an empty text

    def taken(self, first: int, stop: int) -> RowArrays:
        """Return the arrays of rows ``first`` to ``stop``; offsets are not shifted."""
        rows = slice(first, stop)
        offsets = self.offsets[first : stop + 1]
        return RowArrays(offsets, self.checksums[rows], self.digests[rows], self.empty[rows])

    @classmethod
    def read(cls, path: Path) -> RowArrays:
        """Return the arrays of a file. Raises InputError if one is missing."""
        with open_arrays(str(path), str(path), "npz") as arrays:
            if not arrays.keys() >= ROW_ARRAYS.keys():
                raise InputError(f"{path}: is not complete", DELETE)
            columns = {}
            for name in ROW_ARRAYS:
                array = arrays[name]()
                empty = np.zeros((0, *array.shape[1:]), array.dtype)
                columns[name] = np.concatenate([empty, *array.blocks()])
        return cls(**columns)


ROW_ARRAYS = {"offsets": "<i8", "checksums": "<u4", "digests": "|u1", "empty": "|u1"}


def open_index(path: Path) -> SearchIndex | None:
    """Return the index in a folder; None if there is none yet.

    Raises InputError for a path that is not an index, and for a damaged index.
    """
    folder = Path(os.path.realpath(path))
    if not os.path.lexists(folder):
        return None
    if not folder.is_dir():
        hint = f"an index is a folder; {option('vectors')} reads files"
        raise InputError(f"{path}: is not a folder", hint)
    for _ in range(ATTEMPTS):
        manifest = read_object(path / MANIFEST, InputError)
        manifest.hint = DELETE
        if not manifest:
            if not all(name.endswith((*ENDS, ".tmp")) for name in os.listdir(folder)):
                hint = f"give {option('index')} another name"
                raise InputError(f"{path}: is not a search index", hint)
            return None
        if manifest.get(VERSION_KEY) != VERSION:
            raise InputError(f"{path}: is not a search index of this version of bertcli", DELETE)
        try:
            with suppress(FileNotFoundError):
                return SearchIndex(path, folder, manifest)
        except OSError as error:
            raise unreadable(str(path), error) from None
    raise InputError(f"{path}: files of the index are missing", DELETE)


class SearchIndex:
    """An open index. Its files stay readable when another process replaces the index."""

    def __init__(self, path: Path, folder: Path, manifest: JsonObject) -> None:
        """Open the files. Raises FileNotFoundError if another process has replaced them."""
        self.path = path
        self.manifest = manifest
        self.spellings: Mapping[str, str] = {}  # stored file name -> spelling given by the user
        self.tag = manifest.text("tag") or ""
        self.vectors_path = folder / f"{self.tag}{VECTORS_END}"
        self.rows_path = folder / f"{self.tag}{ROWS_END}"
        self.texts = open(folder / f"{self.tag}{TEXTS_END}", "rb")  # noqa: SIM115 - the next line closes it
        finalize(self, self.texts.close)
        file = open(self.vectors_path, "rb", buffering=0)  # noqa: SIM115 - `_check_vectors` closes it
        self.check = in_background(self._check_vectors, file)
        if sha256(self.rows_path) != manifest.object("sha256").text("rows"):
            raise self._damaged(self.rows_path)
        self.arrays = RowArrays.read(self.rows_path)
        try:
            self.unchecked_vectors: Array = np.load(
                self.vectors_path, mmap_mode="r", allow_pickle=False
            )
        except (ValueError, EOFError):
            raise self._damaged(self.vectors_path) from None
        vectors = self.unchecked_vectors
        if vectors.ndim != 2 or vectors.dtype != "<f4" or len(vectors) != self.count:
            raise self._damaged(self.vectors_path)
        if os.fstat(self.texts.fileno()).st_size != self.arrays.offsets[-1]:
            raise self._damaged(Path(self.texts.name))

    def _damaged(self, file: Path) -> InputError:
        """Return the error for a file that differs from what was written."""
        return InputError(f"{self.path}: {file.name} was changed after it was made", DELETE)

    def _check_vectors(self, file: FileIO) -> None:
        """Raise InputError unless the open file of vectors is the one that was written."""
        with file:
            if sha256_of(file) != self.manifest.object("sha256").text("vectors"):
                raise self._damaged(self.vectors_path)

    @property
    def vectors(self) -> Array:
        """The vectors, [n, D]. Raises InputError if they were changed after they were made."""
        self.check.result()
        return self.unchecked_vectors

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.arrays.checksums)

    @property
    def fingerprint(self) -> JsonObject:
        """All that determines the vectors: model, weights, tokenizer and options."""
        return self.manifest.object("fingerprint")

    @cached_property
    def files(self) -> list[CorpusFile]:
        """The files of the corpus, in the order of their rows.

        Raises InputError for an invalid manifest.
        """
        entries = self.manifest.entries("files").objects().values()
        files = [CorpusFile.of(entry) for entry in entries]
        if sum(file.rows for file in files) != self.count:
            raise self.manifest.bad("files", f"files with {self.count:,} rows")
        return files

    @cached_property
    def first_rows(self) -> list[int]:
        """The first row of each file."""
        return [*accumulate((file.rows for file in self.files), initial=0)][:-1]

    @cached_property
    def first_records(self) -> list[int]:
        """The number of the first record of each file, counted over all files."""
        return [*accumulate((file.records for file in self.files), initial=0)][:-1]

    @property
    def unit(self) -> str:
        """The unit of a row: "chunk" or "text"."""
        return "chunk" if self.manifest.switch("chunks") else "text"

    def blocks(self, dim: int) -> Iterator[Array]:
        """Yield the vectors in blocks [<= ROWS_PER_BLOCK, D].

        Raises InputError unless D is ``dim``; at the end if the vectors were changed after they
        were made.
        """
        size = self.unchecked_vectors.shape[1]
        if size != dim:
            raise InputError(f"{self.path}: has {size} dimensions, and the model {dim}", SAME_MODEL)
        starts = range(0, self.count, ROWS_PER_BLOCK)
        blocks = (self.unchecked_vectors[start : start + ROWS_PER_BLOCK] for start in starts)
        yield from checked(blocks, self.check)

    def lines(self, first: int, stop: int) -> list[bytes]:
        """Return the lines of rows ``first`` to ``stop``. Raises InputError for a bad checksum."""
        offsets = self.arrays.offsets[first : stop + 1].tolist()
        self.texts.seek(offsets[0])
        block = self.texts.read(offsets[-1] - offsets[0])
        lines = [block[start - offsets[0] : end - offsets[0]] for start, end in pairwise(offsets)]
        if list(map(crc32, lines)) != self.arrays.checksums[first:stop].tolist():
            raise self._damaged(Path(self.texts.name))
        return lines

    def record(self, row: int) -> Record:
        """Return the record of a row. A record without an id gets its number in the corpus."""
        return self._record(row, self.lines(row, row + 1)[0])

    def _record(self, row: int, line: bytes) -> Record:
        """Return the record of a row from its line."""
        record, number = record_of(line, f"{self.path}: row {row}")
        if number is not None:
            file_number = bisect_right(self.first_rows, row) - 1
            record = record._replace(id=self.first_records[file_number] + number)
        return respelled(record, self.spellings) if self.spellings else record

    def all_records(self) -> Iterator[Sequence[Record]]:
        """Yield all records, in blocks of ROWS_PER_READ."""
        for first in range(0, self.count, ROWS_PER_READ):
            lines = self.lines(first, min(first + ROWS_PER_READ, self.count))
            yield [self._record(row, line) for row, line in enumerate(lines, first)]

    @property
    def bm25_file(self) -> Bm25File:
        """The file of the BM25 index of the texts."""
        digests = self.manifest.object("sha256")
        return Bm25File(self.vectors_path, digests.text("vectors"), digests.text("texts"))

    def bm25(self, tokenizer: Tokenizer) -> Bm25:
        """Return the BM25 index of the texts, from its file; without one, made and stored."""
        postings = self.stored_postings()
        bm25 = Bm25(tokenizer, postings)
        if postings is None:
            for records in self.all_records():
                bm25.add(records)
            self.bm25_file.write(bm25.postings)
        return bm25

    def stored_postings(self) -> Postings | None:
        """Return the stored postings; None if there are none for these rows."""
        postings = self.bm25_file.read()
        return postings if postings and len(postings.lengths) == self.count else None


# Keys of a line.
BODY = "text"
PAIR = "pair"
ID = "id"
NUMBER = "number"
FIELDS = "fields"
FILE_FIELD = ORIGIN[0]  # field of a hit that names its file


def line_of(record: Record, number: int | None) -> dict[str, Any]:
    """Return the object to store for a record.

    ``number`` is the number of the record in its file, if it has no id; else None.
    """
    fields: dict[str, Any] = {BODY: record.text}
    if record.pair is not None:
        fields[PAIR] = record.pair
    if number is not None:
        fields[NUMBER] = number
    elif record.id is not None:
        fields[ID] = record.id
    if record.extra:
        fields[FIELDS] = record.extra
    return fields


def record_of(line: bytes, where: str) -> tuple[Record, int | None]:
    """Return the record in a line, and its number in its file if it has no id, else None.

    Raises InputError for an invalid line; ``where`` is its location for messages.
    """
    fields = JsonObject(object_in(value_of(line, where, DELETE), where), where, InputError, DELETE)
    number = fields.checked(NUMBER, COUNT)
    record = Record(fields[BODY], fields.get(PAIR), fields.get(ID), fields.get(FIELDS))
    return record, number


def respelled(record: Record, spellings: Mapping[str, str]) -> Record:
    """Return a record with its file respelled, in its fields and in its id."""
    fields = record.extra or {}
    name = str(fields.get(FILE_FIELD, ""))
    if name in spellings:
        record = record._replace(extra={**fields, FILE_FIELD: spellings[name]})
    if record.id in spellings and name in ("", record.id):
        record = record._replace(id=spellings[record.id])
    return record


class IndexTexts(HitTexts):
    """The texts of an index, for hits.

    ``keep`` lists the fields to show, separated by commas; None: all. ``empty`` are the rows of
    empty texts to exclude from hits; with ``with_empty``, there are none.
    """

    def __init__(
        self, index: SearchIndex, keep: str | None = None, *, with_empty: bool = False
    ) -> None:
        self.index = index
        self.names = names_to_keep(keep)
        self.empty = np.flatnonzero(index.arrays.empty) if not with_empty else np.zeros(0, int)

    def records(self, rows: Set[int], count: int) -> Texts:
        """Return the records of the given rows. Raises InputError for a missing field."""
        records = {}
        for row in sorted(rows):
            record = self.index.record(row)
            fields = kept_fields(record.extra or {}, self.names, str(self.index.path))
            records[row] = record._replace(extra=fields)
        return records
