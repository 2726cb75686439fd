"""The corpus of a search: its vectors, in a file or temporary, and its texts for hits.

    vectors = VectorFile("corpus.npy")
    texts = CorpusTexts(vectors, reader)     # or StoredTexts("corpus.parquet")
    texts.records({3, 5}, count)             # the records of these rows

`IndexTexts` in `search_index` has the texts of an index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Container, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from bertcli.embedding.embed_run import EmbedRun
from bertcli.embedding.pooling import EmbeddedBlock
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.errors import InputError, counted, option
from bertcli.formats.arrays import open_arrays
from bertcli.formats.jsonl import numbered_lines_of_file, object_in, value_of
from bertcli.formats.registry import FORMATS, Holds
from bertcli.formats.tables import Spool
from bertcli.formats.vector_files import (
    DIGEST,
    IDS,
    INDICES,
    MAKE_AGAIN,
    ROW,
    ROWS_PER_BLOCK,
    START,
    STOP,
    TERMS,
    VALUES,
    VECTOR,
    VECTORS,
    Array,
    manifest_of,
    open_parquet_columns,
    read_text_vectors,
    read_vector_lists,
    vector_format_of,
)
from bertcli.formats.vector_writer import UNIT_COLUMNS, VECTOR_FIELDS
from bertcli.io.output_files import OutputFiles
from bertcli.io.publish import FREE_TEMP_SPACE, unwritable
from bertcli.io.threads import checked
from bertcli.io.typed_json import JsonObject, is_regular
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.records.record import Record, is_empty
from bertcli.records.record_fields import kept_fields, names_to_keep
from bertcli.retrieval.lexical import Bm25, Bm25File
from bertcli.retrieval.nearest import Match
from bertcli.runs.identity import InputDigest
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from bertcli.embedding.sparse import TermNames

Texts = dict[int, Record]  # by row

# Fields of hits that are not carried fields.
HIT_FIELDS = frozenset(
    {"query", "rank", "score", "row", "id", "text", "dense_rank", "lexical_rank", "retrieval_score"}
)
# Fields of rows stored with vectors that are not carried fields.
STORED_FIELDS = HIT_FIELDS | {
    *VECTOR_FIELDS,
    *UNIT_COLUMNS,
    VECTORS,
    TERMS,
    INDICES,
    VALUES,
    STOP,
    DIGEST,
}
RECORD_FIELDS = ("id", "text")  # `STORED_FIELDS` of a `Record`


# --- vectors ---


class VectorFile:
    """Vectors of a corpus in a file, which may be written by another program.

    ``check`` runs meanwhile, and fails if the file was changed after it was made.
    """

    def __init__(self, path: str, check: Future[None] | None = None) -> None:
        self.path = path
        self.check = check

    @cached_property
    def manifest(self) -> JsonObject:
        """The manifest; empty if there is none."""
        return manifest_of(self.path)

    def blocks(self, dim: int, *, any_model: bool = False) -> Iterator[Array]:
        """Yield blocks of vectors, one vector per text, as `read_text_vectors` does.

        Then raises the error of ``check``, if given.
        """
        blocks = read_text_vectors(self.path, dim, any_model=any_model)
        return checked(blocks, self.check) if self.check else blocks

    def lists(self, names: TermNames | None) -> Iterator[Sequence[Array]]:
        """Yield lists of token vectors or term weights per text, as `read_vector_lists` does.

        Then raises the error of ``check``, if given.
        """
        lists = read_vector_lists(self.path, names)
        return checked(lists, self.check) if self.check else lists

    @property
    def bm25_file(self) -> Bm25File | None:
        """The file of the BM25 index beside the vectors."""
        manifest = self.manifest
        return Bm25File(Path(self.path), manifest.text("sha256"), manifest.text("corpus_sha256"))

    def refuse_other_texts(self, rows: int, digest: InputDigest) -> None:
        """Raise InputError unless the vectors, ``rows`` of them, belong to the digested texts."""
        # Files of other programs have no digest.
        recorded_digest = self.manifest.get("corpus_sha256", digest.texts)
        if rows != digest.records or recorded_digest != digest.texts:
            raise InputError(
                f"{self.path}: has {counted(rows, 'row')}, and the corpus has "
                f"{counted(digest.records, 'text')}: it was made from other texts",
                f"{option('index')} FOLDER follows a corpus that changes; delete {self.path} to "
                f"make it again, or leave out {option('vectors')}",
            )


class TemporaryVectors(EmbedRun):
    """A run that computes the vectors of a corpus to a temporary file. Execute once, then close.

    The file has no name, so a killed process leaves no file.
    """

    bm25_file = None

    def __init__(self, embedder: RecordEmbedder, reader: Reader) -> None:
        super().__init__(embedder, reader.again(keep=None), self._add, fixed_windows=True)
        self.digest = InputDigest()
        with errors_of_temporary_folder():
            self.spool = Spool()
        self.close = self.spool.close

    def _add(self, block: EmbeddedBlock) -> None:
        """Store the vectors of a block, and add its texts to the digest."""
        self.digest.add(block.records)
        with errors_of_temporary_folder():
            self.spool.add(block.vectors)

    def blocks(self, dim: int, *, any_model: bool = False) -> Iterator[Array]:
        """Yield blocks of vectors [n, D], one vector per text."""
        yield self.embedder.empty_output
        yield from self.spool

    def lists(self, names: TermNames | None) -> Iterator[Sequence[Array]]:
        """Yield lists of token vectors or term weights, for some texts at a time."""
        yield from self.spool

    def refuse_other_texts(self, rows: int, digest: InputDigest) -> None:
        """Raise InputError unless the digested texts are the embedded texts."""
        if rows != digest.records or self.digest.texts != digest.texts:
            names = ", ".join(self.reader.source.paths)
            raise InputError(f"{names}: was changed while it was read", "run the command again")


@contextmanager
def errors_of_temporary_folder() -> Iterator[None]:
    """Turn an OSError of the temporary folder, such as a full disk, into an OutputError."""
    try:
        yield
    except OSError as error:
        raise unwritable(gettempdir(), error, FREE_TEMP_SPACE) from None


# --- texts ---


class HitTexts(ABC):
    """The texts of the rows of a corpus; ``empty`` are the rows to exclude from hits."""

    empty: Sequence[int] | Array

    @abstractmethod
    def records(self, rows: Set[int], count: int) -> Texts:
        """Return the records of the given rows; the corpus has ``count``.

        Raises InputError if they cannot be read, or if a field to keep is missing.
        """

    def found_empty(self, records: Texts, count: int) -> bool:
        """Return True if some of the records are empty and were not in ``empty``; now they are."""
        return False


class CorpusTexts(HitTexts):
    """The texts of a corpus with stored vectors, read again from the input when needed.

    ``empty`` are the rows of empty texts to exclude from hits; with ``with_empty``, there are none.
    With a tokenizer, ``bm25`` is the BM25 index of the texts, from the file beside the vectors or
    from the texts.
    """

    def __init__(
        self,
        vectors: VectorFile | TemporaryVectors,
        reader: Reader,
        *,
        with_empty: bool = False,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.vectors = vectors
        self.reader = reader
        self.digest = InputDigest()
        self.empty = array("q")
        file = vectors.bm25_file if tokenizer else None
        postings = file.read() if file else None
        self.bm25 = Bm25(tokenizer, postings) if tokenizer else None
        for block in reader.blocks():
            if self.bm25 and postings is None:
                self.bm25.add(block)
            if not with_empty:
                self.empty.extend(empty_rows(block, self.digest.records))
            self.digest.add(block)
        is_new = postings is None and file and file.texts_digest == self.digest.texts
        if self.bm25 and file and is_new:
            file.write(self.bm25.postings)

    def records(self, rows: Set[int], count: int) -> Texts:
        """Return the texts of the given rows. Raises InputError as `blocks` does."""
        return records_of_rows(rows, self.blocks(count))

    def blocks(self, count: int) -> Iterable[Sequence[Record]]:
        """Return all texts.

        Raises InputError if the vectors, ``count`` of them, were made from other texts.
        """
        self.vectors.refuse_other_texts(count, self.digest)
        return self.reader.again().blocks()


class StoredTexts(HitTexts):
    """The texts that are stored with vectors, if any.

    ``keep`` lists the fields to show, separated by commas; None: all. ``empty`` are the rows of
    empty texts to exclude from hits, as far as they are known.
    """

    def __init__(self, path: str, keep: str | None = None, *, with_empty: bool = False) -> None:
        self.path = path
        self.names = names_to_keep(keep)
        self.with_empty = with_empty
        self.empty: list[int] = []

    def records(self, rows: Set[int], count: int) -> Texts:
        """Return the records of the given rows. Raises InputError as `stored_records` does."""
        return dict(stored_records(self.path, rows, self.names))

    def found_empty(self, records: Texts, count: int) -> bool:
        """Return True if some of the records are empty; then ``empty`` has all such rows.

        With ``with_empty``, always False.
        """
        if self.with_empty or not any(map(is_stored_empty, records.values())):
            return False
        all_records = stored_records(self.path, range(count), names=[])
        self.empty = [row for row, record in all_records if is_stored_empty(record)]
        return True


def empty_rows(records: Iterable[Record], first_row: int) -> list[int]:
    """Return the rows of empty texts; the records start at ``first_row``."""
    return [row for row, record in enumerate(records, first_row) if is_empty(record)]


def is_stored_empty(record: Record) -> bool:
    """Return True if the stored text has only white space; False if no text is stored."""
    return not str(record.text).strip()


def rows_of(matches: Iterable[Iterable[Match]]) -> set[int]:
    """Return the rows of all matches."""
    return {match.row for best in matches for match in best}


def records_of_rows(rows: Container[int], blocks: Iterable[Sequence[Record]]) -> Texts:
    """Return the records of the given rows; ``blocks`` are all records in order."""
    records = enumerate(chain.from_iterable(blocks))
    return {row: record for row, record in records if row in rows}


def stored_records(
    path: str, rows: Container[int], names: Sequence[str] | None = None
) -> Iterator[tuple[int, Record]]:
    """Yield each of these rows, with the id, text and fields that are stored with its vector.

    They are in the rows of JSONL, CSV and Parquet. For arrays, they are in an index beside the
    vectors, if there is one, else in an array of NPZ (ids only). A missing text is None. ``names``
    are the fields to keep; None: all. Raises InputError if they cannot be read or a field is
    missing.
    """
    for row, fields in enumerate(_stored_fields(path, rows)):
        if row not in rows:
            continue
        hidden = STORED_FIELDS | ({START} if STOP in fields else set())  # of tokens, not a chunk
        carried = {name: value for name, value in fields.items() if name not in hidden}
        text: Any = fields.get("text")
        yield row, Record(text, id=fields.get("id"), extra=kept_fields(carried, names, path))


def _stored_fields(path: str, needed_rows: Container[int]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each row. JSON lines are parsed only for ``needed_rows``."""
    file_format = FORMATS[vector_format_of(path)]
    index = OutputFiles(Path(path)).index
    if file_format.can_hold(Holds.ARRAYS) and is_regular(index, InputError, MAKE_AGAIN):
        for row, (where, fields) in enumerate(_json_objects(str(index), needed_rows)):
            if fields.get(ROW, row) != row:
                raise InputError(f"{where}: not the index of row {row}", MAKE_AGAIN)
            yield fields
    elif file_format.can_hold(Holds.IDS):
        with open_arrays(path, path, file_format.name) as arrays:
            for block in arrays[IDS]().blocks(ROWS_PER_BLOCK) if IDS in arrays else ():
                yield from ({"id": key or None} for key in block.tolist())
    elif file_format.is_json:
        for _, fields in _json_objects(path, needed_rows):
            yield fields
    elif file_format.is_columnar:
        with open_parquet_columns(path) as table:
            hidden = STORED_FIELDS.difference(RECORD_FIELDS)
            names = [name for name in table.names if name not in hidden]
            for _, columns in table.columns(names):
                for values in zip(*(columns[name] for name in names), strict=True):
                    yield dict(zip(names, values, strict=True))
    elif file_format.can_hold(Holds.ROWS):
        reader = Reader(Input.of(paths=(path,), text_field=VECTOR, no_pairs=True, keep="*"))
        yield from ({"id": record.id, **(record.extra or {})} for record in reader)


def _json_objects(path: str, needed_rows: Container[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and fields of each JSON line; {} for rows not in ``needed_rows``."""
    lines = chain.from_iterable(numbered_lines_of_file(path))
    for row, (number, line) in enumerate(lines):
        where = f"{path}:{number}"
        value = value_of(line, where) if row in needed_rows else []
        yield where, {} if isinstance(value, list) else object_in(value, where)
