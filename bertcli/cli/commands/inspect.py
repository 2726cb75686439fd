"""`bertcli inspect`: what is in a model, or in a file of vectors."""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import typer

from bertcli.checkpoints.scan import is_static, read_config
from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ConsoleOptions, ModelOptions
from bertcli.cli.options.inspect import AttentionOptions, TargetOptions, ViewOptions
from bertcli.errors import UsageError, counted
from bertcli.hub import ModelFolder
from bertcli.inspection import FileReport, FolderReport, inspect_file, inspect_folder
from bertcli.inspection.verify import VerifyCheck, verify_file, verify_model


def inspect(
    target: TargetOptions,
    model: ModelOptions,
    views: ViewOptions,
    attention: AttentionOptions,
    messages: ConsoleOptions,
) -> None:
    """Show what is in a model, or in a file of vectors.

    $ bertcli inspect bert-base-uncased
    $ bertcli inspect --attention 'I love NLP!' -o attention.html
    $ bertcli inspect vectors.npy
    """
    console = messages.console()
    path = target.file()
    attention.check(views, path)
    if path:
        sound = _file(inspect_file(path), views)
    elif is_static((folder := target.folder(model)).path):
        sound = _static(folder, views, attention)
    else:
        report = inspect_folder(folder)
        if attention.attention is not None:
            _attention(report, attention, views, console)
            return
        sound = _model(report, views)
    if not sound:
        raise typer.Exit(1)


def _model(report: FolderReport, views: ViewOptions) -> bool:
    """Show a model, and return whether it is sound as far as that was to be verified."""
    if views.json:
        content = report.to_json(with_tree=views.tree, with_tensors=views.tensors)
        return _print_report(content, verify_model(report), views)
    from bertcli.cli.display.model_report import show_model

    return show_model(report, views)


def _static(folder: ModelFolder, views: ViewOptions, attention: AttentionOptions) -> bool:
    """Show a table of token vectors, and return whether it is sound."""
    from bertcli.inspection.folder import inspect_static
    from bertcli.inspection.verify import verify_static

    if attention.attention is not None or views.tree:
        read_config(folder.path)  # says that there is no encoder
    report = inspect_static(folder)
    if not views.json:
        from bertcli.cli.display.model_report import show_static

        return show_static(report, views)
    content = report.to_json(with_tensors=views.tensors)
    return _print_report(content, verify_static(report), views)


def _print_report(
    content: dict[str, Any], checks: Iterable[VerifyCheck], views: ViewOptions
) -> bool:
    """Print a report as JSON, with its checks where they are asked for; return whether all passed.

    Nothing is checked otherwise.
    """
    done = [*checks] if views.verify else []
    _print_json(content | ({"verify": [asdict(check) for check in done]} if views.verify else {}))
    return all(check.ok is not False for check in done)


def _file(report: FileReport, views: ViewOptions) -> bool:
    """Show a file of vectors, and return whether it is sound as far as that was to be verified."""
    if views.tree or views.config or views.tokenizer:
        raise UsageError("--tree, --config and --tokenizer require a model")
    check = verify_file(report) if views.verify else None
    if views.json:
        _print_json(report.to_json() | ({"verify": {"ok": check.ok}} if check else {}))
    else:
        from bertcli.cli.display.vector_file import show_vectors

        show_vectors(report, check, whole=views.tensors)
    return check is None or (check.ok is not False and report.finite)


def _attention(
    report: FolderReport, asked: AttentionOptions, views: ViewOptions, console: Console
) -> None:
    from bertcli.inspection.attention import AttentionChoice, AttentionFile, look, numbers
    from bertcli.plots.attention_maps import MEAN
    from bertcli.records.records import Record

    layers = asked.layers
    if asked.last_layer_only(views.json):
        layers = "-1"
        console.detail("the last layer: --layers chooses others")
    mean = asked.heads == MEAN
    heads = None if mean else numbers(asked.heads, "--heads")
    choice = AttentionChoice(numbers(layers, "--layers"), heads, mean)
    file = AttentionFile(asked.output, asked.overwrite) if asked.output else None
    if file:
        file.check()
    shown_maps = []
    ids = asked.extra_ids(report.config.fields_of_extra)
    texts = enumerate(asked.attention or (), 1)
    records = [Record(text, asked.pair, extra=ids, line=line) for line, text in texts]
    for text_maps, dropped in look(report, records, choice):
        shown_maps.append(text_maps)
        if dropped:
            console.warn(f"text truncated to {len(text_maps.tokens)} tokens ({dropped} dropped)")
    if file:
        console.warn(file.write(shown_maps, report))
        for text_maps in shown_maps:
            maps = counted(text_maps.count, "map")
            console.note(f"{file.path}: {maps} of {counted(len(text_maps.tokens), 'token')}")
    elif views.json:
        shown = [text_maps.to_json() for text_maps in shown_maps]
        _print_json(shown if len(shown) > 1 else shown[0])
    else:
        from bertcli.cli.display.attention import attention_view
        from bertcli.cli.display.screen import screen_of_stdout

        with screen_of_stdout() as screen:
            for text_maps in shown_maps:
                attention_view(screen, text_maps)


def _print_json(value: Any) -> None:
    import json

    from bertcli.files.typed_json import strict
    from bertcli.files.writers import open_output

    indent = 2 if sys.stdout.isatty() else None
    with open_output(None) as output:
        text = json.dumps(strict(value), ensure_ascii=False, indent=indent)
        output.write(text.encode("utf-8", "backslashreplace") + b"\n")
