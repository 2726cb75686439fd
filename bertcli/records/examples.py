"""Examples: records with what a model is to say of them, for training and evaluation.

    read = read_examples(Reader(examples_source("reviews.jsonl")))
    read.form.task, read.examples[0].target          # "classify", "good"

`FORMS` has a row for each kind. The names of the fields decide which one a record is of, or the
fields that are named instead. What a model may say is not checked here: a label is any word.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

from bertcli.errors import SKIP, InputError, UsageError, counted
from bertcli.files.jsonl import value_of
from bertcli.files.paths import input_name
from bertcli.files.streams import can_be_reread, suffix_of
from bertcli.files.typed_json import kind_of
from bertcli.records.extra_ids import extra_ids
from bertcli.records.reader import Reader
from bertcli.records.records import Record, checked, words
from bertcli.records.source import Source

TASKS = ("classify", "multilabel", "regress", "tag", "answer", "embed")


class Form(NamedTuple):
    """The fields of a kind of examples."""

    task: str
    text: str
    pair: str | None
    target: str  # the field that tells this form from others with the same text
    needs_pair: bool = False


CLASSIFY = Form("classify", "text", "pair", "label")
MULTILABEL = Form("multilabel", "text", "pair", "labels")
REGRESS = Form("regress", "text", "pair", "score")
TAG = Form("tag", "words", None, "tags")
ANSWER = Form("answer", "question", "context", "answer", needs_pair=True)
CONTRAST = Form("embed", "anchor", "positive", "positive", needs_pair=True)
FORMS = (CLASSIFY, MULTILABEL, REGRESS, TAG, ANSWER, CONTRAST)
SIMILARITY = Form("embed", "text", "pair", "score", needs_pair=True)  # only when asked for


@dataclass(frozen=True)
class FieldNames:
    """Fields that a user names, where a file has other names than the forms; None: as there."""

    text: str | None = None  # of the first text: a text, words, a question or an anchor
    pair: str | None = None  # of the second: a pair, a context or a positive
    label: str | None = None  # of what is learnt: a label, labels, a score, tags or an answer

    def of(self, form: Form) -> Form:
        """Return a form with these names."""
        pair = self.pair or form.pair if form.pair else None
        target = (self.label or form.target) if form != CONTRAST else pair or form.target
        return form._replace(text=self.text or form.text, pair=pair, target=target)


USUAL = FieldNames()


def form_of(record: Record, task: str | None, names: FieldNames) -> Form:
    """Return the form of examples like this one; InputError when none or several fit."""
    fields = record.extra or {}
    forms = [form for form in (*FORMS, SIMILARITY) if form.task == task] if task else [*FORMS]
    if names.text is None:
        text = next(form.text for form in FORMS if form.text in fields)
        forms = [form for form in forms if form.text == text]
    if task is None and names.label is not None:
        forms = _by_value(forms, record, fields.get(names.label))
    fitting = [form for form in forms if {names.of(form).text, names.of(form).target} <= {*fields}]
    if len(fitting) > 1 and CONTRAST.target not in fields:  # it fits by the name of the pair alone
        fitting = [form for form in fitting if form != CONTRAST]
    if SIMILARITY in fitting:  # a score is there: not only pairs that belong together
        return SIMILARITY
    if len(fitting) != 1:
        raise _no_form(record, task, names, fitting)
    return fitting[0]


def _by_value(forms: list[Form], record: Record, label: Any) -> list[Form]:
    """Return the forms that a label of this kind may be of, where its name says nothing."""
    if isinstance(record.text, list):
        return [form for form in forms if form == TAG]
    kind = REGRESS if isinstance(label, float) else CLASSIFY
    kind = MULTILABEL if isinstance(label, list) else kind
    return [form for form in forms if form in (kind, ANSWER)][:1]


def _no_form(
    record: Record, task: str | None, names: FieldNames, fitting: list[Form]
) -> InputError:
    fields = record.extra or {}
    if fitting:
        several = " and ".join(form.target for form in fitting)
        tasks = ", ".join(form.task for form in fitting)
        return InputError(
            f"{record.where}: fields {several} are of different tasks",
            f"choose with --task {tasks}",
        )
    forms = [form for form in (*FORMS, SIMILARITY) if task in (None, form.task)]
    needed = " or ".join(dict.fromkeys(_named(names.of(form)) for form in forms))
    return InputError(
        f"{record.where}: {f'--task {task}' if task else 'an example'} needs the fields {needed}",
        f"available: {', '.join(fields)}; other names: --text-field, --pair-field, --label-field",
    )


def _named(form: Form) -> str:
    names = (form.text, *([form.pair] if form.pair and form.needs_pair else []), form.target)
    return ", ".join(dict.fromkeys(names))


CONLL = (".conll", ".bio", ".iob")  # suffixes of files with a word and its tag on each line


class AnswerSpan(NamedTuple):
    """Where the answer stands in the context: characters from start to end; None: it has none."""

    text: str
    start: int | None


class Example(NamedTuple):
    """A record, and what is to be said of it; its type is that of the form's target."""

    record: Record
    target: Any  # label, list of labels, number, list of tags, AnswerSpan, or negative text


@dataclass(frozen=True)
class Examples:
    """Examples of one form."""

    form: Form
    examples: Sequence[Example]
    source: str  # to name in messages
    target: str  # the field of what is learnt, as the file names it

    def __len__(self) -> int:
        return len(self.examples)


def examples_source(path: str, **options: Any) -> Source:
    """Return the source of a file of examples; UsageError for one without fields."""
    text_field = options.get("text_field")
    names = (text_field,) if text_field else tuple(dict.fromkeys(form.text for form in FORMS))
    source = Source(paths=(path,), text_fields=names, single=True, sentences=True, keep="*")
    if options.get("format", "auto") == "auto":
        options["format"] = (
            "jsonl" if path == "-" else "conll" if suffix_of(path) in CONLL else "auto"
        )
    source = Source(**{**vars(source), **options})
    if source.format_of(path) == "txt":
        can_be_reread(path)  # or there is no such file
        raise UsageError(
            f"{path}: a text file has no fields",
            "examples are .jsonl, .csv, .tsv or .parquet with fields such as label, or .conll; "
            "--input-format says what another file is",
        )
    return source


def read_examples(
    reader: Reader, task: str | None = None, extra: Collection[str] = (), names: FieldNames = USUAL
) -> Examples:
    """Read all examples; their form is that of the first record, unless a task is named.

    Fields of ids of ``extra`` embeddings are kept in their records.

    Raises InputError for no records, a field that is missing or has no such value.
    """
    examples: list[Example] = []
    form: Form | None = None
    for block in reader.blocks():
        if len(block):
            form = form or form_of(block[0], task, names)
            examples += reader.collect(enumerate(block), partial(_example, form, names, extra))
    source = ", ".join(map(input_name, reader.source.paths))
    if form is None or not examples:
        raise InputError(f"{source}: no examples found", "give a file with at least two examples")
    return Examples(form, examples, source, names.of(form).target)


# --- from a record to an example ---


def _example(
    form: Form, names: FieldNames, extra: Collection[str], number: int, record: Record
) -> Example:
    named, fields = names.of(form), record.extra or {}
    if form == TAG:
        example = _tags(record, named)
    else:
        texts = _texts(record, named)
        target: Any
        if form == CLASSIFY:
            target = _word(_field(record, named.target), record, named.target)
        elif form == MULTILABEL:
            target = _labels(record, named.target)
        elif form == ANSWER:
            target = _answer(record, named.target, str(texts.pair))
        else:
            target = _negative(record) if form == CONTRAST else _number(record, named.target)
        example = Example(texts, target)
    if not extra:
        return example
    record = example.record._replace(extra={name: fields.get(name) for name in extra})
    for name in extra:
        extra_ids(record, name)
    return Example(record, example.target)


def _field(record: Record, name: str) -> Any:
    value = (record.extra or {}).get(name)
    if value is None or value == "":
        raise InputError(f"{record.where}: field {name!r} is missing or empty", SKIP)
    return value


def _other_kind(record: Record, name: str, value: Any, needed: str) -> InputError:
    return InputError(f"{record.where}: field {name!r} is {kind_of(value)}, not {needed}", SKIP)


def _texts(record: Record, form: Form) -> Record:
    """Return the record with its texts alone."""
    pair = (record.extra or {}).get(form.pair or "")
    for name, value in ((form.text, record.text), (form.pair or "", pair)):
        if not isinstance(value, str) and not (value is None and name == form.pair):
            raise _other_kind(record, name, value, "a string")
    if form.needs_pair and not pair:
        raise InputError(f"{record.where}: field {form.pair!r} is missing or empty", SKIP)
    return checked(record._replace(pair=pair or None, extra=None), Source())


def _word(value: Any, record: Record, name: str) -> str:
    if isinstance(value, bool | int):
        return str(value).lower()
    if not isinstance(value, str):
        raise _other_kind(record, name, value, "a word")
    return value


def _labels(record: Record, name: str) -> list[str]:
    value = (record.extra or {}).get(name)
    if isinstance(value, str):  # of CSV
        listed = value_of(value, record.where) if value.startswith("[") else value.split(",")
        value = [
            label.strip() if isinstance(label, str) else label for label in listed if label != ""
        ]
    if not isinstance(value, list):
        raise _other_kind(record, name, value, "a list")
    return [*dict.fromkeys(_word(label, record, name) for label in value)]


def _number(record: Record, name: str) -> float:
    value = _field(record, name)
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number):
        raise InputError(f"{record.where}: field {name!r} is {value!r:.40}, not a number", SKIP)
    return number


def _tags(record: Record, form: Form) -> Example:
    tags = _field(record, form.target)
    text = record.text
    lists = [words(entries) if isinstance(entries, str) else entries for entries in (text, tags)]
    if not all(
        isinstance(entries, list) and all(isinstance(w, str) for w in entries) for entries in lists
    ):
        raise InputError(f"{record.where}: words and tags are lists of strings", SKIP)
    if len(lists[0]) != len(lists[1]):
        word_count, tag_count = counted(len(lists[0]), "word"), counted(len(lists[1]), "tag")
        raise InputError(f"{record.where}: {word_count}, but {tag_count}", SKIP)
    return Example(record._replace(text=lists[0], extra=None), lists[1])


def _answer(record: Record, name: str, context: str) -> AnswerSpan:
    extra = record.extra or {}
    answer, start = extra.get(name), extra.get("start")
    if not answer:
        return AnswerSpan("", None)
    if not isinstance(answer, str):
        raise _other_kind(record, name, answer, "a string")
    at = context.find(answer) if start in (None, "") else int(_number(record, "start"))
    if at < 0 or context[at : at + len(answer)] != answer:
        raise InputError(f"{record.where}: the answer does not stand at {at} of the context", SKIP)
    return AnswerSpan(answer, at)


def _negative(record: Record) -> str | None:
    negative = (record.extra or {}).get("negative") or None
    if negative is not None and not isinstance(negative, str):
        raise _other_kind(record, "negative", negative, "a string")
    return negative
