"""What a search finds in a corpus: whose vectors a file holds, and the texts and ids of its rows.

Vectors are searched with the model that made them, as their manifest names it, and beside the
texts that they were made of. Without texts, a row has the id that was kept with its vector.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertcli.errors import InputError, counted
from bertcli.files.jsonl import lines_of, object_in, value_of
from bertcli.files.stored_arrays import open_arrays
from bertcli.files.streams import LARGEST_RECORD, open_bytes, size_on_disk
from bertcli.files.typed_json import JsonObject
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.records.source import Source
from bertcli.vectors.fingerprint import InputDigest
from bertcli.vectors.journal import Files
from bertcli.vectors.reading import FIELD, ROWS, form_of, manifest_of, stored

Texts = dict[int, Record]  # by the number of their row
Ids = dict[int, Any]  # likewise

KEPT = 32 << 20  # bytes of files whose texts are kept between queries


def is_known(path: str) -> bool:
    """Whether a manifest next to a file of vectors says which model made it."""
    return isinstance((manifest_of(path) or {}).get("fingerprint"), dict)


def check_maker(
    path: str,
    digests: Mapping[str, Mapping[str, str]],
    config: Mapping[str, Any] | None = None,
    wanted: str = "texts",
) -> JsonObject:
    """Return the options that a file of vectors was made with, as its manifest names them.

    ``digests`` are the sha256 of this model's files, by kind ("weights", "tokenizer") and name,
    ``config`` what else of the model its vectors depend on; an older manifest does not name it.
    Raises InputError when it names other files, or its vectors are not those ``wanted``: of texts,
    tokens or terms.
    """
    made = _object(manifest_of(path) or {}, "fingerprint")
    for kind, mine in digests.items():
        theirs = _object(made, kind)
        if set(map(str, theirs.values())) != set(mine.values()):
            name = made.get("model", "unknown")
            raise InputError(
                f"{path}: was made by another model, {name}: sha256 of its {kind} is "
                f"{_shown(theirs)}, and here it is {_shown(mine)}",
                f"give --model {name}, or leave out --vectors",
            )
    _check_config(path, made.get("config"), config or {})
    options = _object(made, "options")
    _check_kind(path, options, wanted)
    return JsonObject(options, f"{path}: manifest", InputError, path="fingerprint.options.")


def _object(outer: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = outer.get(name)
    return found if isinstance(found, dict) else {}


def _check_kind(path: str, options: Mapping[str, Any], wanted: str) -> None:
    kind = "texts"
    if options.get("sparse"):
        kind = "terms"
    elif options.get("pooling") == "none":
        kind = "words" if options.get("word_vectors") else "tokens"
    if kind == wanted:
        return
    made = "weights of terms" if kind == "terms" else f"vectors of {kind}"
    if wanted != "texts":
        raise InputError(f"{path}: holds {made}, not of {wanted}", "search them as they were made")
    option = "sparse" if kind == "terms" else f"{kind[:-1]}-vectors"
    also = "" if kind == "words" else f", or search with --{option}"
    raise InputError(
        f"{path}: holds {made}, but a search needs one per text",
        f"make it with bertcli embed without --{option}{also}",
    )


def _check_config(path: str, theirs: object, mine: Mapping[str, Any]) -> None:
    if not isinstance(theirs, dict):
        return
    for key, value in mine.items():
        if theirs.get(key) != value:
            raise InputError(
                f"{path}: was made by a model whose {key} was {theirs.get(key)!r}, and here it is "
                f"{value!r}",
                "give --model the one that made it, or leave out --vectors",
            )


def check_texts(path: str, digest: str) -> None:
    """Raise InputError when the manifest says that a file was made from texts with another sha256.

    ``digest`` is that of the texts of the corpus; an older manifest does not name it.
    """
    made = (manifest_of(path) or {}).get("texts_sha256")
    if made is not None and made != digest:
        raise InputError(
            f"{path}: was made from other texts: their sha256 is {str(made)[:12]}, and that of the "
            f"corpus is {digest[:12]}",
            "leave out --vectors, or make it again",
        )


def _shown(digests: Mapping[str, str]) -> str:
    return ", ".join(str(digest)[:12] for digest in digests.values()) or "none"


class CorpusTexts:
    """The texts beside the vectors of a file: checked when first read, and kept where they are few.

    Raises InputError when they are other texts than those that the vectors were made of.
    """

    def __init__(self, path: str, reader: Reader) -> None:
        self.path, self.reader = path, reader
        size = size_on_disk(reader.source.paths)
        self.keeps = size is None or size <= KEPT  # what is no file cannot be read again
        self.kept: list[Sequence[Record]] = []
        self.checked = False

    def at(self, rows: Container[int], count: int) -> Texts:
        """Return the texts of some of ``count`` rows."""
        found: Texts = {}
        total = 0
        for block in self._blocks(count):
            numbers = range(total, total + len(block))
            found |= {row: block[row - total] for row in numbers if row in rows}
            total += len(block)
        return found

    def _blocks(self, count: int) -> Iterator[Sequence[Record]]:
        if self.checked:
            yield from self.kept if self.keeps else Reader(self.reader.source).blocks()
            return
        digest = InputDigest()
        for block in self.reader.blocks():
            digest.add(block)
            if self.keeps:
                self.kept.append(block)
            yield block
        refuse_other_count(self.path, count, digest.records)
        check_texts(self.path, digest.texts.hexdigest())
        self.checked = True


def refuse_other_count(path: str, rows: int, texts: int) -> None:
    """Raise InputError unless a corpus has as many texts as a file of vectors has rows."""
    if texts != rows:
        raise InputError(
            f"{path}: has {counted(rows, 'row')}, and the corpus has {counted(texts, 'text')}",
            "it was made from other texts; leave out --vectors, or make it again",
        )


def refuse_other_width(path: str, shape: tuple[int, ...]) -> None:
    """Raise InputError when the vectors in a file are not of this shape, which the model gives."""
    for block in stored(path):
        if block.shape[1:] != shape:
            theirs, ours = (" x ".join(map(str, one)) for one in (block.shape[1:], shape))
            raise InputError(
                f"{path}: has {theirs} dimensions, but the model has {ours}, and no manifest says "
                "which model made it",
                "give --model the one that made it",
            )
        return


def ids_at(path: str, rows: Iterable[int]) -> Ids:
    """Return the ids that were kept with the vectors of these rows; a row without one is left out.

    They stand in the rows of JSONL, CSV and Parquet, in an array of NPZ, else in an index.
    Raises InputError when they cannot be read.
    """
    wanted, form = set(rows), form_of(path)
    if form in ("npy", "safetensors"):
        index = Files.of(Path(path)).row_index
        found = _of_lines(str(index), wanted, indexed=True) if index.exists() else {}
    elif form == "jsonl":
        found = _of_lines(path, wanted)
    else:
        ids = {"npz": _of_npz, "csv": _of_csv, "parquet": _of_parquet}[form](path)
        found = {row: key for row, key in enumerate(ids) if row in wanted}
    return {row: key for row, key in found.items() if key is not None}


def _of_lines(path: str, wanted: set[int], *, indexed: bool = False) -> Ids:
    """Return the ids in lines of JSON, of which those of an index name their row."""
    found, first = {}, 0
    with open_bytes(path) as stream:
        for lines in lines_of(stream, path):
            for row, (number, line) in enumerate(lines, first):
                if row in wanted:
                    found[row] = _id_in(line, f"{path}:{number}", row if indexed else None)
            first += len(lines)
    return found


def _id_in(line: str | bytes, where: str, row: int | None) -> Any:
    value = value_of(line, where)
    if row is None and isinstance(value, list):  # a vector, and nothing else
        return None
    found = object_in(value, where)
    if row is not None and found.get("row") != row:
        raise InputError(f"{where}: not the index of row {row}", "make the vectors again")
    return found.get("id")


def _of_npz(path: str) -> Iterator[Any]:
    with open_arrays(path, path, "npz") as arrays:
        if "ids" in arrays:
            for block in arrays["ids"]().blocks(ROWS):
                yield from (key or None for key in block.reshape(-1).tolist())


def _of_csv(path: str) -> Iterator[Any]:
    return (record.id for record in Reader(Source(paths=(path,), text_field=FIELD, single=True)))


def _of_parquet(path: str) -> Iterator[Any]:
    from bertcli.files.parquet import opened

    with opened(path, path) as table:
        if "id" in table.names:
            for _, some in table.columns(["id"], LARGEST_RECORD, lambda row: None):
                yield from some["id"]
