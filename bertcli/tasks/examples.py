"""Examples: records with what a model should predict for them, for training and evaluation.

    found = read_examples(Reader(examples_source("reviews.jsonl", Input())))
    found.task.name, found.examples[0].target          # "classify", ["good"]

The names of the fields decide the task, unless it is named. Labels can be any words here; they are
compared with those of a model later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertcli.errors import SKIP, InputError, UsageError, option
from bertcli.formats.registry import INPUT_CHOICES, JSONL, TXT
from bertcli.io.paths import HUB_SCHEME, input_name
from bertcli.io.printable import listed
from bertcli.io.streams import can_be_reread, suffix_of
from bertcli.io.typed_json import JsonObject
from bertcli.records.extra_ids import extra_ids
from bertcli.records.given import input_from
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.tasks.learning import DEFAULT_NAMES, Example, ExampleFields, FieldNames, LearningTask

CONLL = (".conll", ".bio", ".iob")  # suffixes of files with a word and its tag on each line


@dataclass(frozen=True)
class Examples:
    """Examples of one task."""

    task: LearningTask
    examples: Sequence[Example]
    source: str  # name of the input, for messages


# --- the task of a record ---


def task_of_record(record: Record, name: str | None, names: FieldNames) -> LearningTask:
    """Return the task that a record is an example of.

    ``name`` is the name of the task, if it was chosen; ``names`` are the names of the fields.
    Raises InputError if no task fits, or several.
    """
    from bertcli.tasks.registry import named_tasks

    fields = record.extra or {}
    candidates = named_tasks(name)
    tasks = candidates
    if names.text is None:
        text = next(task.fields.text for task in named_tasks(None) if task.fields.text in fields)
        tasks = tuple(task for task in tasks if task.fields.text == text)
    if name is None and names.label is not None:  # decided by the value, not by the field name
        label = fields.get(names.label)
        tasks = tuple(task for task in tasks if task.recognises(record.text, label))[:1]
    fitting = [task for task in tasks if _fits(names.of(task.fields), fields)]
    if len(fitting) > 1:
        fitting = [task for task in fitting if not _fits_by_pair_alone(task, fields)]
    for task in fitting:
        if not task.is_default:  # the task was named, and its fields are present
            return task
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed_tasks = ", ".join(
            f"{task.name} ({names.of(task.fields).target})" for task in fitting
        )
        task_names = " or ".join(task.name for task in fitting)
        raise InputError(
            f"{record.where}: an example fits several tasks: {listed_tasks}",
            f"choose with {option('task', task_names)}",
        )
    raise InputError(
        f"{record.where}: an example needs the fields {needed_fields(candidates, fields, names)}",
        f"available: {listed(fields)}; others are named by {option('text_field')}, "
        f"{option('pair_field')}, {option('label_field')}",
    )


def _fits(needed: ExampleFields, fields: Collection[str]) -> bool:
    """Return True if a record has the text and the target of a task."""
    return {needed.text, needed.target} <= {*fields}


def _fits_by_pair_alone(task: LearningTask, fields: Collection[str]) -> bool:
    """Return True if the target is the pair, whose field was named by the user."""
    return task.fields.target == task.fields.pair and task.fields.target not in fields


def needed_fields(tasks: Iterable[LearningTask], fields: Collection[str], names: FieldNames) -> str:
    """Return a message with the fields of tasks, limited to tasks whose text is in ``fields``.

    For example "text and label, labels or score; or question and answer with context". If no task
    has its text in ``fields``, all are listed.
    """
    targets_by_text: dict[str, list[str]] = {}
    for task in tasks:
        needed = names.of(task.fields)
        target = needed.target
        if needed.needs_pair and needed.pair != target:
            target = f"{target} with {needed.pair}"
        targets_by_text.setdefault(needed.text, []).append(target)
    present = {text: targets for text, targets in targets_by_text.items() if text in fields}
    return "; or ".join(
        f"{text} and {alternatives(targets)}"
        for text, targets in (present or targets_by_text).items()
    )


def alternatives(names: Sequence[str]) -> str:
    """Return "a, b or c", each once."""
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} or {last}" if others else last


# --- reading ---


def examples_source(path: str, source: Input) -> Input:
    """Return the source of a file of examples, with the options of ``source``."""
    file_format = source.format_options.format
    if file_format == "auto":
        if path == "-":
            file_format = JSONL
        elif suffix_of(path) in CONLL:
            file_format = "conll"
    if source.format_of(path) == TXT and path != "-" and not path.startswith(HUB_SCHEME):
        can_be_reread(path)  # raises for a folder and a missing file
    if source.fields.text_field:
        text_fields = [source.fields.text_field]
    else:
        from bertcli.tasks.registry import LEARNING_TASKS

        text_fields = [task.fields.text for task in LEARNING_TASKS]
    return source.changed(
        paths=(path,),
        format=file_format,
        example_text_fields=tuple(dict.fromkeys(text_fields)),
        requested=(path,),  # named in the error for txt, which has no fields
        keep="*",
        infer_types=False,  # labels and ids are text
        no_pairs=True,
        sentences=True,
    )


# Options for reading a file of examples from Python.
READING = (
    "text_field",
    "join",
    "input_format",
    "delimiter",
    "on_error",
    "encoding",
    "encoding_errors",
    "offline",
)


def example_readers(paths: Iterable[str | None], options: Mapping[str, Any]) -> list[Reader]:
    """Return the readers of files of examples; ``options`` are those in `READING`.

    Raises UsageError for an unknown format.
    """
    fields = {name: value for name, value in options.items() if name != "input_format"}
    file_format = options.get("input_format", "auto")
    if file_format not in INPUT_CHOICES:
        raise UsageError(
            f"unknown input_format {file_format!r}", f"one of {', '.join(INPUT_CHOICES)}"
        )
    source = input_from(fields, format=file_format)
    return [Reader(examples_source(path, source)) for path in paths if path]


def read_examples(
    reader: Reader,
    task_name: str | None = None,
    extra_fields: Collection[str] = (),
    names: FieldNames = DEFAULT_NAMES,
) -> Examples:
    """Read all examples. The first one decides their task, unless it is named.

    Their records keep only ``extra_fields``, which have the ids of extra embeddings.

    Raises InputError for no records, a missing field, or a value of another type.
    """
    examples: list[Example] = []
    task: LearningTask | None = None
    for block in reader.blocks():
        if len(block):
            if task is None:
                task = task_of_record(block[0], task_name, names)
            examples += reader.collect(partial(_example, task, names, extra_fields), block)
    source = ", ".join(map(input_name, reader.source.paths))
    if task is None or not examples:
        raise InputError(f"{source}: no examples found", "give a file with at least two examples")
    return Examples(task, examples, source)


def _example(
    task: LearningTask, names: FieldNames, extra_fields: Collection[str], record: Record
) -> Example:
    """Return a record as an example of a task. Raises InputError for a record to skip."""
    needed = names.of(task.fields)
    fields = JsonObject(record.extra or {}, record.where, InputError, SKIP)
    text, pair = task.texts(fields, needed)
    target = task.target(fields, needed)
    kept = {name: fields.get(name) for name in extra_fields}
    record = record._replace(text=text, pair=pair, extra=kept or None)
    for name in extra_fields:
        extra_ids(record, name)
    return Example(record, target)
