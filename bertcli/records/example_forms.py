"""The kinds of examples: which fields each has, and which kind a record is of.

`FORMS` has a row for each. The names of the fields decide, or the fields that are named instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from bertcli.errors import InputError
from bertcli.records.records import Record

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
    there = record.extra or {}
    known = [form for form in (*FORMS, SIMILARITY) if form.task == task] if task else [*FORMS]
    if names.text is None:
        text = next(form.text for form in FORMS if form.text in there)
        known = [form for form in known if form.text == text]
    if task is None and names.label is not None:
        known = _by_value(known, record, there.get(names.label))
    fitting = [form for form in known if _fits(names.of(form), there)]
    if len(fitting) > 1 and CONTRAST.target not in there:  # it fits by the name of the pair alone
        fitting = [form for form in fitting if form != CONTRAST]
    if SIMILARITY in fitting:  # a score is there: not only pairs that belong together
        return SIMILARITY
    if len(fitting) != 1:
        raise _no_form(record, task, names, fitting)
    return fitting[0]


def _fits(form: Form, there: Mapping[str, Any]) -> bool:
    return form.text in there and form.target in there


def _by_value(known: list[Form], record: Record, label: Any) -> list[Form]:
    """Return the forms that a label of this kind may be of, where its name says nothing."""
    if isinstance(record.text, list):
        return [form for form in known if form == TAG]
    kind = REGRESS if isinstance(label, float) else CLASSIFY
    kind = MULTILABEL if isinstance(label, list) else kind
    return [form for form in known if form in (kind, ANSWER)][:1]


def _no_form(
    record: Record, task: str | None, names: FieldNames, fitting: list[Form]
) -> InputError:
    there = record.extra or {}
    available = f"available: {', '.join(there)}"
    if fitting:
        several = " and ".join(form.target for form in fitting)
        tasks = ", ".join(form.task for form in fitting)
        return InputError(
            f"{record.where}: fields {several} are of different tasks",
            f"choose with --task {tasks}",
        )
    if names.label is not None and names.label not in there:
        return InputError(f"{record.where}: field {names.label!r} not found", available)
    if task is not None:
        forms = [names.of(form) for form in (*FORMS, SIMILARITY) if form.task == task]
        needed = " or ".join(map(_named, forms))
        return InputError(
            f"{record.where}: --task {task} needs the fields {needed}",
            f"{available}; other names: --text-field, --pair-field, --label-field",
        )
    first = next((form.text for form in FORMS if form.text in there), "text")
    targets = [form.target for form in FORMS if form.text == first]
    near = [name for name in there if get_close_matches(name, targets)]
    return InputError(
        f"{record.where}: no field to learn",
        f"next to {names.text or first}, give one of {', '.join(targets)}, or name it: "
        f"--label-field {near[0] if near else 'NAME'}; {available}",
    )


def _named(form: Form) -> str:
    names = (form.text, *([form.pair] if form.pair and form.needs_pair else []), form.target)
    return ", ".join(dict.fromkeys(names))
