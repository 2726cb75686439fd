"""Common parts of the commands for task heads: opening the model, and writing results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertcli.cli.display.console import Console
from bertcli.cli.display.messages import empty, special_tokens, truncated
from bertcli.cli.options.common import ModelOptions, OutputOptions
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import record
from bertcli.hub import MODEL_FILES

if TYPE_CHECKING:
    from bertcli.cli.options.groups import OptionGroup
    from bertcli.hub import ModelFolder
    from bertcli.tasks.head import Head, PooledHead, Stream


def open_head(
    kind: str, model: ModelOptions, length: OptionGroup, compute: ComputeOptions, console: Console
) -> Head:
    """Return the model with the head of this class; its backend is imported here."""
    folder = model.folder(MODEL_FILES)
    from bertcli.tasks.head import Head, Settings

    settings = record(Settings, length, compute)
    head = Head.open(folder, kind, settings, console)
    _describe(head, folder, kind, console)
    return head


def open_labels(
    command: str,
    model: ModelOptions,
    length: OptionGroup,
    compute: ComputeOptions,
    console: Console,
) -> Head | PooledHead:
    """Return a model that has a score for each label of a text, for this command."""
    folder = model.folder(MODEL_FILES)
    from bertcli.tasks.head import CLASSIFIER, Settings, open_classifier

    head = open_classifier(folder, record(Settings, length, compute), console, command)
    _describe(head, folder, CLASSIFIER, console)
    return head


def _describe(head: Head | PooledHead, folder: ModelFolder, kind: str, console: Console) -> None:
    device, threads = head.runtime.devices[0], head.runtime.threads
    console.detail(
        f"model: {folder.path} ({folder.source}); {kind}, {head.runtime.facts['backend']}, "
        f"device {device}, threads {threads}, max_length {head.max_length}"
    )


def write(
    stream: Stream,
    output: OutputOptions,
    form: str,
    model: ModelOptions,
    console: Console,
    advice: str = "",
) -> None:
    """Write the results of a pass, and report warnings and counts.

    ``advice`` says what can be done about truncated texts.
    """
    from bertcli.tasks.results import fields_written, lined, tabular

    if form != "table":
        names = fields_written(stream.blank, flat=form != "jsonl") - stream.consumed
        stream.reader.reserve(names)
    batches = console.track(
        stream,
        stream.reader,
        beside_output=output.on_terminal,
        truncated=lambda: stream.tally.truncated,
    )
    if form == "table":
        from bertcli.cli.display.tables import results_table, show_batches

        show_batches(batches, results_table, stream.reader.source.paths)
    else:
        lines = form == "jsonl"
        told = stream.blank, stream.reader, stream.consumed
        rows_of = lined(batches) if lines else tabular(batches, *told)
        with output.open(form, stream.reader.source.inputs, model) as put:
            for rows in rows_of:
                put(rows)
    report(stream, console, advice, numbered=form != "table")


def report(stream: Stream, console: Console, advice: str = "", *, numbered: bool) -> None:
    """Report warnings and counts of a pass."""
    tally = stream.tally
    console.warn(truncated(tally, stream.max_length, advice and f"; {advice}"))
    if not stream.masks:
        console.warn(special_tokens(tally))
    console.note(empty(tally))
    console.close(tally.records, stream.reader, numbered=numbered)
