"""`bertcli inspect`: what is in a model, or in a file of vectors."""

import sys
from typing import Any

import typer

from bertcli.cli.console import Console
from bertcli.cli.inspect_options import AttentionOptions, TargetOptions, ViewOptions
from bertcli.cli.options import ConsoleOptions, ModelOptions
from bertcli.errors import OutputError, UsageError
from bertcli.inspection import (
    FileReport,
    Report,
    inspect_file,
    inspect_folder,
    tokenizer_details,
)


def inspect(
    target: TargetOptions,
    model: ModelOptions,
    views: ViewOptions,
    attention: AttentionOptions,
    messages: ConsoleOptions,
) -> None:
    """Show what is in a model, or in a file of vectors.

    [bold]bertcli inspect bert-base-uncased[/bold]

    [bold]bertcli inspect --attention "I love NLP!" -o attention.html[/bold]
    """
    console = messages.console()
    attention.check(views)
    if path := target.file():
        if attention.attention is not None:
            raise UsageError(f"{path} is a file, and has no attention", "name a model")
        _file(inspect_file(path), views)
        return
    report = inspect_folder(target.folder(model))
    if attention.attention is not None:
        _attention(report, attention, views, console)
    elif views.json:
        _json(report, views)
    else:
        _show(report, views)


def _show(report: Report, views: ViewOptions) -> None:
    from bertcli.cli import inspect_views as show
    from bertcli.cli.display.screen import screen_of_stdout

    with screen_of_stdout() as screen:
        if not views.some():
            show.summary(screen, report)
        if views.config:
            show.config(screen, report)
        if views.tokenizer:
            show.tokenizer(screen, tokenizer_details(report.folder.path))
        if views.tensors:
            show.tensors(screen, _tensors(report))
        if views.tree:
            show.tree(screen, _tree(report))
    if views.verify:
        from bertcli.inspection.verify import verify

        with screen_of_stdout() as screen:
            sound = show.checks(screen, verify(report))
        if not sound:
            raise typer.Exit(1)


def _json(report: Report, views: ViewOptions) -> None:
    found = report.to_json()
    checks: list[Any] = []
    if report.tokenizer is not None:
        found["tokenizer"] |= tokenizer_details(report.folder.path)
    if views.tree:
        found["tree"] = _tree(report).to_json()
    if views.tensors:
        found["tensors"] = _tensors(report)
    if views.verify:
        from dataclasses import asdict

        from bertcli.inspection.verify import verify

        checks = [asdict(check) for check in verify(report)]
        found["verify"] = checks
    _print_json(found)
    if any(check["ok"] is False for check in checks):
        raise typer.Exit(1)


def _tensors(report: Report) -> list[dict[str, Any]]:
    """Return the tensors; of a format whose headers say nothing, by loading them."""
    known: list[dict[str, Any]] | None = report.to_json()["tensors"]
    if known is not None:
        return known
    from bertcli.inspection.verify import loaded_tensors

    return loaded_tensors(report)


def _tree(report: Report) -> Any:
    from bertcli.model.tree import module_tree

    return module_tree(report.config, report.architecture, report.pooler)


def _file(report: FileReport, views: ViewOptions) -> None:
    if views.tree or views.config or views.tokenizer:
        raise UsageError("--tree, --config and --tokenizer are for models")
    sound: bool | None = None
    if views.verify:
        from bertcli.inspection.vectors import check_sha256

        sound, said = check_sha256(report)
    if views.json:
        _print_json(report.to_json() | ({"verify": {"ok": sound}} if views.verify else {}))
    else:
        from bertcli.cli import inspect_views as show
        from bertcli.cli.display.screen import screen_of_stdout
        from bertcli.cli.file_view import vectors

        with screen_of_stdout() as screen:
            vectors(screen, report, whole=views.tensors)
            if views.verify:
                show.check(screen, sound, said)
    bad = any(array["nan"] or array["inf"] for array in report.arrays)
    if views.verify and (sound is False or bad):
        raise typer.Exit(1)


def _attention(
    report: Report, asked: AttentionOptions, views: ViewOptions, console: Console
) -> None:
    from bertcli.files.clash import refuse_inputs
    from bertcli.inspection.attention import Choice, look, numbers
    from bertcli.records import Record
    from bertcli.writers import open_output

    form, layers, heads = asked.form(), asked.layers, asked.heads
    if layers is None and (form in ("svg", "png") or not (form or views.json)):
        layers = "-1"
        console.detail("the last layer: --layers chooses others")
    choice = Choice(numbers(layers, "--layers"), numbers(heads, "--heads"))
    if asked.output is not None and asked.output.exists() and not asked.overwrite:
        raise OutputError(f"{asked.output}: exists already", "give --overwrite, or another name")
    found, cut = look(report, Record(str(asked.attention), asked.pair), choice)
    if cut:
        console.warn(f"the text is too long: {cut} tokens were cut off")
    if asked.output is not None:
        refuse_inputs((report.folder.path,), [asked.output])
        content = _picture(form, found, console)
        with open_output(asked.output, overwrite=asked.overwrite) as output:
            output.file.write(content)
            output.used = True
        console.note(f"{asked.output}: {found.count} maps of {len(found.tokens)} tokens")
    elif views.json:
        _print_json(found.to_json())
    else:
        from bertcli.cli.attention_view import attention_view
        from bertcli.cli.display.screen import screen_of_stdout

        with screen_of_stdout() as screen:
            attention_view(screen, found)


def _picture(form: str, found: Any, console: Console) -> bytes:
    from bertcli.heatmaps import picture
    from bertcli.heatmaps.strokes import unknown

    if form == "png" and (lacking := unknown("".join(found.tokens))):
        some = " ".join(sorted(lacking)[:10])
        console.warn(f"PNG draws these characters as boxes: {some}; SVG and HTML have them all")
    return picture(found, form)


def _print_json(value: Any) -> None:
    import json

    from bertcli.writers import open_output

    indent = 2 if sys.stdout.isatty() else None
    with open_output(None) as output:
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        output.file.write(text.encode("utf-8", "backslashreplace") + b"\n")
