"""A record: a text or a sentence pair, and how it is made from the fields of a row."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise, repeat
from operator import add
from typing import Any, NamedTuple, TypeVar, overload

from bertcli.errors import SKIP, InputError, counted, option
from bertcli.io.printable import listed
from bertcli.io.typed_json import BadJsonError, parse, shown
from bertcli.records.source import ORIGIN, Source

T = TypeVar("T")
R = TypeVar("R")

Text = str | list[str]  # a list is a text that is already split into words


class Record(NamedTuple):
    """A text, or a sentence pair, and where it came from."""

    text: Text
    pair: Text | None = None
    id: Any = None
    extra: dict[str, Any] | None = None
    file: str = ""
    line: int = 0
    ids: list[int] | None = None  # instead of a text, where token ids are read

    @property
    def where(self) -> str:
        """The place to name in messages: ``reviews.txt:12``, or ``text 2`` for arguments."""
        return f"{self.file}:{self.line}" if self.file else f"text {self.line}"


def is_empty(record: Record) -> bool:
    """Return whether a record has no character but white space."""
    parts = (record.text, record.pair or "")
    texts = (part if isinstance(part, str) else "".join(part) for part in parts)
    return not any(map(str.strip, texts))


def checked(record: Record, source: Source) -> Record:
    """Return the record with its texts split into words or parsed as ids, if the source says so.

    Raises InputError for a text that is not a string, or not valid Unicode.
    """
    if source.ids:
        return record._replace(text="", ids=ids_in(record.text, record.where))
    text = _checked(record.text, record, source)
    pair = None if record.pair is None else _checked(record.pair, record, source)
    return record._replace(text=text, pair=pair)


LISTS = f"a pair has at most two texts; a list of words needs {option('pre_split')}"


def _checked(text: Any, record: Record, source: Source) -> Text:
    if source.pre_split or (source.sentences and isinstance(text, list)):
        text = words(text) if isinstance(text, str) else text
        if not (isinstance(text, list | tuple) and all(isinstance(word, str) for word in text)):
            raise InputError(f"{record.where}: the text is no list of strings", SKIP)
        return [_valid(word, record, source) for word in text]
    if not isinstance(text, str):
        raise InputError(
            f"{record.where}: the text is {shown(text)}, not a string",
            LISTS if isinstance(text, list | tuple) else SKIP,
        )
    return _valid(text, record, source)


def _valid(text: str, record: Record, source: Source) -> str:
    """Lone surrogates come from bad bytes in arguments and from JSON escapes; they are not text."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as bad:
        if source.encoding_errors == "strict":
            raise InputError(
                f"{record.where}: character {bad.start} is half of a surrogate pair, not text",
                f"use {option('encoding_errors', 'replace')}",
            ) from None
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def words(text: str) -> list[str]:
    """Split a text into words: a JSON list of strings, or else at white space."""
    with suppress(BadJsonError):
        value = parse(text) if text.startswith("[") else None
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return value
    return text.split()


def ids_in(value: Any, where: str) -> list[int]:
    """Return a list of ids: a list, JSON, or numbers separated by spaces or commas.

    Raises InputError for anything else.
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            listed = text.startswith("[")
            value = parse(text) if listed else [int(n) for n in text.replace(",", " ").split()]
        except ValueError:  # of the JSON, or of a number
            raise InputError(
                f"{where}: {text[:40]!r} is not a list of ids",
                "give integers separated by spaces or commas, or a JSON list",
            ) from None
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise InputError(f"{where}: expected a list of integers, the ids", SKIP)
    return value


# Keys that lead to a value: a field, and those of the objects in it.
FieldPath = tuple[str, ...]


class RecordFields(NamedTuple):
    """The names of the fields of a file that make a record.

    A name in ``paths`` is no field of the file: "user.bio" is a value of an object, "title,body"
    are two fields that are joined.
    """

    text: str
    pair: str | None
    id: str | None
    carried: Sequence[str]
    paths: Mapping[str, Sequence[FieldPath]] = {}
    join: str = ""  # what stands between fields that are joined

    @property
    def needed(self) -> list[str]:
        """The fields of the file, without duplicates."""
        names: list[str] = []
        for name in (self.text, self.pair, self.id, *self.carried):
            if name is not None:
                names += [path[0] for path in self.paths.get(name, [(name,)])]
        return list(dict.fromkeys(names))

    def with_paths(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Return the row with the values of all ``paths``. Raises InputError where there is none.

        Of joined fields, those that are empty are left out; null where all are null.
        """
        values = {name: self._value(row, paths, where) for name, paths in self.paths.items()}
        return {**row, **values}

    def _value(self, row: Mapping[str, Any], paths: Sequence[FieldPath], where: str) -> Any:
        found = [nested_value(row, path, where) for path in paths]
        if len(paths) == 1:
            return found[0]
        for path, value in zip(paths, found, strict=True):
            if not isinstance(value, str | None):
                raise InputError(
                    f"{where}: field {'.'.join(path)!r} is {shown(value)}, not a string", SKIP
                )
        if found.count(None) == len(found):
            return None
        return self.join.join(filter(None, found))


def nested_value(row: Mapping[str, Any], path: FieldPath, where: str) -> Any:
    """Return the value that keys lead to; None behind a null. Raises InputError for no such key."""
    value: Any = row
    for depth, key in enumerate(path):
        if value is None:
            return None
        if not isinstance(value, Mapping) or key not in value:
            outer = ".".join(path[:depth])
            available = [f"{outer}.{name}" for name in value] if isinstance(value, Mapping) else []
            hint = f"available: {', '.join(available)}" if available else SKIP
            raise InputError(f"{where}: field {'.'.join(path)!r} not found", hint)
        value = value[key]
    return value


def field_path(name: str, names: Collection[str]) -> FieldPath | None:
    """Return the keys that a name such as "user.bio" stands for; None where no field fits."""
    if name in names:
        return (name,)
    keys = name.split(".")
    for count in range(len(keys) - 1, 0, -1):
        if (field := ".".join(keys[:count])) in names:
            return (field, *keys[count:])
    return None


def joined_fields(name: str, names: Collection[str]) -> list[str]:
    """Return the names that a text field such as "title,body" lists, or the one that it is."""
    if name in names or "," not in name:
        return [name]
    return [part.strip() for part in name.split(",")]


# Fields of the rows of bertcli's own commands that the next command has anew: of chunks the number
# of tokens, of hits the place and the score.
REPLACED_FIELDS = (
    (frozenset({"chunk", "start", "end", "n_tokens"}), frozenset({"n_tokens"})),
    (frozenset({"row", "id", "score", "text"}), frozenset({"row", "score"})),
)


# Fields of the rows of bertcli's own commands, which have no text unless it is kept.
RESULT_FIELDS = {
    *("entities", "label", "labels", "predictions", "answer", "answers", "choices"),
    *("embedding", "vectors", "terms", "input_ids"),
}


def replaced_fields(names: Collection[str]) -> set[str]:
    """Return the fields, of rows that a command of bertcli wrote, that another one may replace."""
    return {name for row, fields in REPLACED_FIELDS if row.issubset(names) for name in fields}


def hits_of(value: Any) -> list[Any] | None:
    """Return the hits of an answer of `bertcli similar`, which are rows; else None."""
    if not isinstance(value, dict) or "text" in value or not {"query", "hits"} <= value.keys():
        return None
    hits = value["hits"]
    return hits if isinstance(hits, list) and all(isinstance(hit, dict) for hit in hits) else None


def fields_of(source: Source, names: Sequence[str], where: str) -> RecordFields:
    """Return the names of text, pair, id and kept fields among those available.

    Raises InputError for a requested name that is missing, and for a kept field that has the name
    of an output field.
    """
    text = source.text_field or ("input_ids" if source.ids else "text")
    text = next((name for name in source.text_fields if name in names), text)
    single = source.pair_field is None and (source.single or source.ids)
    pair, key = None if single else source.pair_field or "pair", source.id_field or "id"
    reserved = {*source.taken, *(ORIGIN if source.placed and not source.text_fields else ())}
    if source.full_rows:
        reserved = set()
        carried = [*names]
    elif source.keep == "*":
        written = () if source.kept_text or source.text_fields else (text, pair)
        carried = [name for name in names if name != key and name not in written]
        replaced = replaced_fields(names) & reserved
        carried = [name for name in carried if name not in replaced]
    else:
        carried = [name.strip() for name in source.keep.split(",")] if source.keep else []
        carried = [name for name in dict.fromkeys(carried) if name != "id" or key != "id"]
    named = filter(None, (source.pair_field, source.id_field))
    present = {*names}
    paths: dict[str, list[FieldPath]] = {}
    text_names = joined_fields(text, present)
    for name in (*text_names, *carried, *named, *source.extra_ids):
        if name in present:
            continue
        if path := field_path(name, present):
            paths[name] = [path]
            continue
        if name == text and source.text_fields and not source.text_field:
            raise InputError(
                f"{where}: an example needs a text and a label, and none of the fields "
                f"{', '.join(source.text_fields)} is there",
                f"available: {listed(names)}; name both: {option('text_field', 'NAME')} "
                f"{option('label_field', 'NAME')}",
            )
        hint = f"available: {listed(names)}"
        if name == text and not (source.ids or source.text_field):
            if "id" in present and present & RESULT_FIELDS:
                hint += f"; {option('keep_fields')} of the command before keeps the text"
            else:
                hint += f"; choose with {option('text_field')}"
        likely = max(";|\t", key=names[0].count) if len(names) == 1 else ""
        if likely and likely in names[0]:  # the header is one column
            advice = (
                f"{option('input_format', 'tsv')}"
                if likely == "\t"
                else f"{option('delimiter')} '{likely}'"
            )
            hint = f"the header is one column, {names[0]!r}; try {advice}"
        raise InputError(f"{where}: field {name!r} not found", hint)
    for name in carried:
        if name in reserved:
            raise InputError(
                f"{where}: field {name!r} cannot be kept, as the output has a field of that name",
                f"rename it in the input, or name the fields to keep: {option('keep_fields')} "
                "a,b,c",
            )
    carried += [name for name in source.extra_ids if name not in carried]
    if len(text_names) > 1:
        paths[text] = [path for name in text_names if (path := field_path(name, present))]
    if source.text_fields and text in paths:  # where the text is read from what is kept
        carried.append(text)
    present.update(paths)
    pair = pair if pair in present else None
    join = "\n\n" if source.join is None else source.join
    return RecordFields(text, pair, key if key in present else None, carried, paths, join)


def row_of(record: Record, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written of a record: its id, columns, and the fields that it carries.

    The reader knows the names of the columns, and refuses to carry fields of that name.
    """
    row = dict(columns) if record.id is None else {"id": record.id, **columns}
    return row | (record.extra or {})


def no_pair(where: str, count: int) -> InputError:
    """Return the error for a row of a file of pairs that has not two columns."""
    return InputError(
        f"{where}: {counted(count, 'column')}, but a pair has two",
        f"keep two columns, or read the file with {option('input')} and name "
        f"{option('text_field')} and {option('pair_field')}",
    )


@dataclass(frozen=True, eq=False)
class TextBlock(Sequence[Record]):
    """Records as columns, in the order of their fields; one is made where somebody asks for it.

    ``pairs``, ``ids``, ``extras`` and ``tokens`` are None where no record has any.
    """

    texts: Sequence[Text]
    pairs: Sequence[Text | None] | None
    ids: Sequence[Any] | None
    extras: Sequence[dict[str, Any] | None] | None
    files: Sequence[str]
    lines: Sequence[int]
    tokens: Sequence[list[int] | None] | None = None

    @classmethod
    def of(cls, records: Iterable[Record]) -> TextBlock:
        """Return records as columns."""
        if isinstance(records, TextBlock):
            return records
        columns: Any = [[] for _ in Record._fields]
        for record in records:
            for column, value in zip(columns, record, strict=True):
                column.append(value)
        for at in (1, 2, 3, 6):
            if columns[at].count(None) == len(columns[at]):
                columns[at] = None
        return cls(*columns)

    @classmethod
    def joined(cls, blocks: Sequence[TextBlock]) -> TextBlock:
        """Return the records of some blocks as one."""
        if len(blocks) == 1:
            return blocks[0]
        columns: list[Any] = []
        for parts in zip(*(block.columns for block in blocks), strict=True):
            both = zip(parts, blocks, strict=True)
            rows = chain.from_iterable(part or repeat(None, len(block)) for part, block in both)
            columns.append([*rows] if any(parts) else None)
        return cls(*columns)

    @property
    def columns(self) -> tuple[Sequence[Any] | None, ...]:
        """The fields of the records, in the order of those of one."""
        return (
            self.texts,
            self.pairs,
            self.ids,
            self.extras,
            self.files,
            self.lines,
            self.tokens,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the records are nothing but single texts."""
        return self.columns[1:4] == (None, None, None)

    @cached_property
    def is_split(self) -> bool:
        """Whether any text is a list of words."""
        return list in map(type, self.texts) or list in map(type, self.pairs or ())

    @property
    def strings(self) -> Iterable[str]:
        """All strings of the records: texts and pairs, or their words if they are split."""
        if self.pairs is None and not self.is_split:
            return self.texts  # type: ignore[return-value]
        both = zip(self.texts, self.pairs or repeat(None), strict=False)
        filled = filter(None, chain.from_iterable(both))
        return chain.from_iterable([text] if isinstance(text, str) else text for text in filled)

    @property
    def weights(self) -> Iterable[int]:
        """The number of characters of each record."""
        measure = (lambda text: sum(map(len, text))) if self.is_split else len
        of_texts = map(measure, self.texts)
        if self.pairs is None:
            return of_texts
        return map(add, of_texts, (measure(pair or "") for pair in self.pairs))

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Record]:
        return map(Record, *(repeat(None) if c is None else c for c in self.columns))

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> TextBlock: ...
    def __getitem__(self, at: int | slice) -> Record | TextBlock:
        fields: Any = (None if column is None else column[at] for column in self.columns)
        return TextBlock(*fields) if isinstance(at, slice) else Record(*fields)

    def take(self, rows: Sequence[int]) -> TextBlock:
        """Return some of the records."""
        return TextBlock(*(c and [c[at] for at in rows] for c in self.columns))  # type: ignore[arg-type]

    def without(self, names: Collection[str]) -> TextBlock:
        """Return the records without these of the fields that they carry."""
        if not (names and self.extras):
            return self
        extras = [
            {k: v for k, v in (extra or {}).items() if k not in names} or None
            for extra in self.extras
        ]
        return replace(self, extras=extras if any(extras) else None)


# --- ids of extra embeddings, such as emotions or syllables, that a record gives for its words ---
#
# A field holds an id for each word, or one number for all. Words stand between white space, or are
# the items of a text that is split; those of a pair follow those of the text. A document of
# sentences has an id for each word of them all, or for each sentence a list or a number.
#
# A list with more ids than words has one for each token of the model, without special ones. Whether
# it fits, the tokenizer knows: see `tokenizing.extra_columns`.

MOST = 1 << 20  # ids of an embedding; a typing error would else ask for all memory


def word_starts(text: Text) -> list[int]:
    """Return where the words of a text begin; of a text that is split, their numbers."""
    if isinstance(text, list):
        return list(range(len(text)))
    return [word.start() for word in re.finditer(r"\S+", text)]


def word_count(record: Record) -> int:
    """Return the number of words of a record."""
    return sum(len(word_starts(text)) for text in (record.text, record.pair or ""))


def extra_ids(record: Record, field: str, size: int = MOST) -> int | list[int]:
    """Return the ids of a record's words or tokens, or the one of them all.

    Raises InputError, naming the field, for fewer than words, and unless all are 0 to size - 1.
    """
    where = f"{record.where}: field {field!r}"
    value = (record.extra or {}).get(field)
    ids = [value] if type(value) is int else ids_in(value, where)
    if any(not 0 <= number < size for number in ids):
        raise InputError(f"{where} holds an id that is not 0 to {size - 1}", SKIP)
    if len(ids) == 1 and not isinstance(value, list):
        return ids[0]
    if len(ids) < word_count(record):
        raise unfit_ids(record, field, len(ids), counted(word_count(record), "word"))
    return ids


def unfit_ids(record: Record, field: str, count: int, needed: str) -> InputError:
    """Return the error for a list with another number of ids than the text needs."""
    return InputError(
        f"{record.where}: field {field!r} has {counted(count, 'id')}, but the text has {needed}",
        "give an id for each word between white space or each token, a list for each sentence, "
        "or a number for all",
    )


def sentence_ids(record: Record, sentences: Sequence[str], field: str) -> Sequence[int | list[int]]:
    """Return the ids of the words of each sentence of a document, as `extra_ids` does.

    Raises InputError, naming the field, unless the document has ids for its sentences.
    """
    listed = (record.extra or {}).get(field)
    if isinstance(listed, list) and any(isinstance(ids, list) for ids in listed):
        if len(listed) != len(sentences):
            raise unfit_ids(record, field, len(listed), counted(len(sentences), "sentence"))
        parts = [record._replace(text=sentence) for sentence in sentences]
        return [
            extra_ids(part._replace(extra={field: ids}), field)
            for part, ids in zip(parts, listed, strict=True)
        ]
    ids = extra_ids(record._replace(text="\n".join(sentences)), field)
    if isinstance(ids, int):
        return [ids] * len(sentences)
    ends = [*accumulate((len(word_starts(sentence)) for sentence in sentences), initial=0)]
    if len(sentences) > 1 and len(ids) != ends[-1]:
        raise unfit_ids(record, field, len(ids), counted(ends[-1], "word"))
    return [ids[start:end] for start, end in pairwise([*ends[:-1], len(ids)])]


CHARACTERS = 4 << 20  # of a window: some hundred MB once they are tokens
FIRST_RECORDS, FIRST_CHARACTERS = 64, 1 << 13  # of the first windows that grow


def windows(
    blocks: Iterable[Sequence[Record]],
    size: int,
    *,
    full: bool = False,
    characters: int = CHARACTERS,
    growing_from: int | None = None,
) -> Iterator[Sequence[Record]]:
    """Split blocks into sequences of at most ``size`` records.

    A window ends early with the record that fills it with so many ``characters``. A block that is
    short because its source is slow is passed on at once, unless ``full`` asks for windows that do
    not depend on the blocks. ``growing_from`` is the number of records before the blocks: the first
    windows are small, so that a run commits early, and they are the same wherever it resumes.
    """
    parts: list[TextBlock] = []
    done = growing_from

    def limits() -> tuple[int, int]:
        """Return how many records and characters the next window has room for."""
        if done is None:
            return size, characters
        growth = max(1, done // FIRST_RECORDS)
        return min(size, FIRST_RECORDS * growth), min(characters, FIRST_CHARACTERS * growth)

    missing, room = limits()
    for block in map(TextBlock.of, blocks):
        start, ends = 0, [*accumulate(block.weights, initial=0)]
        while start < len(block):
            stop = min(start + missing, bisect_left(ends, ends[start] + room), len(block))
            parts.append(block[start:stop])
            missing, room = missing - stop + start, room - ends[stop] + ends[start]
            start = stop
            if not missing or room <= 0 or (stop == len(block) and not full):
                window = TextBlock.joined(parts)
                if done is not None:
                    done += len(window)
                yield window
                parts = []
                missing, room = limits()
    if parts:
        yield TextBlock.joined(parts)


def ahead(
    items: Iterable[T], work: Callable[[T], R], *, threads: int = 1, most: int = 1
) -> Iterator[R]:
    """Yield ``work(item)`` of each item in their order, made by threads while the caller works.

    ``most`` of them wait for the caller, who waits for the items: those of a slow source are not
    for threads. An error is raised where the item would have been.
    """
    from concurrent.futures import Future, ThreadPoolExecutor  # which few texts do not need

    pool, turns = ThreadPoolExecutor(threads), deque[Future[R]]()
    try:
        for item in items:
            turns.append(pool.submit(work, item))
            if len(turns) > most:
                yield turns.popleft().result()
        while turns:
            yield turns.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
