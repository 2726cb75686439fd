"""Examples: records with what a model is to say of them, for training and evaluation.

    read = read_examples(Reader(examples_source("reviews.jsonl", Input())))
    read.form.task, read.examples[0].target          # "classify", ["good"]

`FORMS` has a row for each kind. The names of the fields decide which one a record is of, or the
fields that are named instead. What a model may say is not checked here: a label is any word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

from bertcli.errors import SKIP, InputError, UsageError, counted, option
from bertcli.formats.jsonl import value_of
from bertcli.formats.registry import INPUT_CHOICES, JSONL, TXT
from bertcli.io.paths import input_name
from bertcli.io.printable import listed
from bertcli.io.streams import can_be_reread, suffix_of
from bertcli.io.typed_json import TEXT, TEXTS, Check, JsonObject, is_text
from bertcli.keywords import options_from
from bertcli.records.extra_ids import extra_ids
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.records.record import Record, words


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
TASKS = tuple(form.task for form in FORMS)
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
    candidates = [form for form in (*FORMS, SIMILARITY) if task in (None, form.task)]
    forms = candidates if task else [*FORMS]
    if names.text is None:
        text = next(form.text for form in FORMS if form.text in fields)
        forms = [form for form in forms if form.text == text]
    if task is None and names.label is not None:
        label = fields.get(names.label)
        kind = REGRESS if isinstance(label, float) else CLASSIFY
        kind = MULTILABEL if isinstance(label, list) else kind
        kind = TAG if isinstance(record.text, list) else kind
        forms = [form for form in forms if form in (kind, ANSWER)][:1]  # its name says nothing
    fitting = [form for form in forms if {names.of(form).text, names.of(form).target} <= {*fields}]
    if len(fitting) > 1 and CONTRAST.target not in fields:  # it fits by the name of the pair alone
        fitting = [form for form in fitting if form != CONTRAST]
    if SIMILARITY in fitting:  # a score is there: not only pairs that belong together
        return SIMILARITY
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        tasks = ", ".join(f"{form.task} ({names.of(form).target})" for form in fitting)
        raise InputError(
            f"{record.where}: an example fits several tasks: {tasks}",
            f"choose with {option('task', ' or '.join(form.task for form in fitting))}",
        )
    raise InputError(
        f"{record.where}: an example needs the fields {needed_fields(candidates, fields, names)}",
        f"available: {listed(fields)}; others are named by {option('text_field')}, "
        f"{option('pair_field')}, {option('label_field')}",
    )


def needed_fields(forms: Sequence[Form], fields: Collection[str], names: FieldNames) -> str:
    """Return the fields that examples of these forms have, for a message.

    "text and label, labels or score; or question and answer with context". Forms whose text is
    among the fields are the only ones, if there are any.
    """
    by_text: dict[str, list[str]] = {}
    for form in map(names.of, forms):
        if form == names.of(SIMILARITY) and len(forms) > len(FORMS):
            continue  # which is only chosen by --task
        pair = [form.pair] if form.pair and form.needs_pair and form.pair != form.target else []
        target = " with ".join([form.target, *pair])
        by_text.setdefault(form.text, []).append(target)
    present = {text: targets for text, targets in by_text.items() if text in fields}
    return "; or ".join(
        f"{text} and {alternatives(targets)}" for text, targets in (present or by_text).items()
    )


def alternatives(names: Sequence[str]) -> str:
    """Return "a, b or c", each once."""
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} or {last}" if first else last


CONLL = (".conll", ".bio", ".iob")  # suffixes of files with a word and its tag on each line


class AnswerSpan(NamedTuple):
    """Where the answer stands in the context: characters from start to end; None: it has none."""

    text: str
    start: int | None


class Example(NamedTuple):
    """A record, and what is to be said of it; its type is that of the form's target."""

    record: Record
    target: Any  # list of labels or tags, number, AnswerSpan, or negative text


@dataclass(frozen=True)
class Examples:
    """Examples of one form."""

    form: Form
    examples: Sequence[Example]
    source: str  # to name in messages


def examples_source(path: str, source: Input) -> Input:
    """Return the source of a file of examples, which is read as another source says."""
    text_field, form = source.text_field, source.format
    if form == "auto":
        if path == "-":
            form = JSONL
        elif suffix_of(path) in CONLL:
            form = "conll"
    if source.format_of(path) == TXT and path != "-":
        can_be_reread(path)  # or it is a folder, or there is no such file
    return replace(
        source,
        paths=(path,),
        format=form,
        text_fields=tuple(dict.fromkeys([text_field] if text_field else [f.text for f in FORMS])),
        asked=(path,),  # its fields
        keep="*",
        infer_types=False,  # labels and ids are text
        single=True,
        sentences=True,
    )


# Options of how a file of examples is read, from Python.
READING = (
    "text_field",
    "join",
    "input_format",
    "delimiter",
    "on_error",
    "encoding",
    "encoding_errors",
)


def example_readers(paths: Iterable[str | None], options: Mapping[str, Any]) -> list[Reader]:
    """Return the readers of files of examples, which are read as options of READING say.

    Raises UsageError for an option that has no meaning.
    """
    fields = {name: value for name, value in options.items() if name != "input_format"}
    chosen = options.get("input_format", "auto")
    if chosen not in INPUT_CHOICES:
        raise UsageError(f"unknown input_format {chosen!r}", f"one of {', '.join(INPUT_CHOICES)}")
    source = options_from(Input, fields, format=chosen)
    return [Reader(examples_source(path, source)) for path in paths if path]


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
            examples += reader.collect(partial(_example, form, names, extra), block)
    source = ", ".join(map(input_name, reader.source.paths))
    if form is None or not examples:
        raise InputError(f"{source}: no examples found", "give a file with at least two examples")
    return Examples(form, examples, source)


# --- from a record to an example ---


def _example(form: Form, names: FieldNames, extra: Collection[str], record: Record) -> Example:
    named = names.of(form)
    fields = JsonObject(record.extra or {}, record.where, InputError, SKIP)
    pair, target = None, fields.get(named.target)
    if form == TAG:
        for name in (named.text, named.target):
            if isinstance(fields.get(name), str):
                fields[name] = words(fields[name])
            fields.needed(name, TEXTS)
        text, target = fields[named.text], fields[named.target]
        if len(text) != len(target):
            word_count, tag_count = counted(len(text), "word"), counted(len(target), "tag")
            raise InputError(f"{record.where}: {word_count}, but {tag_count}", SKIP)
    else:
        text = fields.needed(named.text, TEXT)
        if named.pair:
            pair = fields.text(named.pair) or None
            if form.needs_pair and not pair:
                raise fields.bad(named.pair, "a text")
        if form == CLASSIFY:
            target = [_word(fields.needed(named.target, WORD))]
        elif form == MULTILABEL:
            if isinstance(target, str):  # of CSV
                listed = value_of(target, record.where) if target[:1] == "[" else target.split(",")
                fields[named.target] = [v.strip() if isinstance(v, str) else v for v in listed]
            target = fields.needed(named.target, LABELS)
            target = [*dict.fromkeys(_word(label) for label in target if label != "")]
        elif form == ANSWER:
            answer, start = fields.text(named.target) or "", None
            if answer:
                context, start = str(pair), str(pair).find(answer)
                if fields.get("start") not in (None, ""):
                    start = int(float(fields.needed("start", NUMBER)))
                if start < 0 or context[start : start + len(answer)] != answer:
                    raise fields.bad(named.target, f"a part of the context, at {start}")
            target = AnswerSpan(answer, start)
        elif form == CONTRAST:
            target = fields.text("negative") or None
        else:
            target = float(fields.needed(named.target, NUMBER))
    kept = {name: fields.get(name) for name in extra}
    record = record._replace(text=text, pair=pair, extra=kept or None)
    for name in extra:
        extra_ids(record, name)
    return Example(record, target)


def _is_word(value: Any) -> bool:
    return isinstance(value, bool | int) or (is_text(value) and value != "")


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


WORD = Check(_is_word, "a word")
LABELS = Check(
    lambda v: isinstance(v, list) and all(_is_word(w) or w == "" for w in v), "a list of words"
)
NUMBER = Check(_is_number, "a number")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else str(value).lower()
