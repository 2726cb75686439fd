"""Help as plain text: `-h` shows common options on one screen, `--help` shows all.

A command's docstring consists of a summary, notes, and examples, whose lines start with $.
"""

from __future__ import annotations

import re
from typing import Any

import typer

from bertcli.cli.display.console import print_text

MESSAGES = "Messages and help"  # the last panel
MAX_WIDTH = 100  # maximum characters of a line
NAMES_WIDTH = 22  # maximum width of the column of option names
LATER_SENTENCES = re.compile(r"(?<=[a-z0-9)\]])\. .*")

# Options that -h shows: for every command ("model"), or for one command ("map.color",
# "models-remove.yes"). Required options are always shown; --resume has a footnote.
COMMON = frozenset(
    """
    input pair pairs question context corpus vectors text_field label_field
    model max_length truncation padding on_truncate
    chunk.overlap chunk.at chunk.first
    special_tokens parse_special
    redact labels multi_label
    tokens count stats per_file skip_special_tokens as_ clean_up
    pooling normalize top_k threshold targets aggregation no_answer tolerance worst
    similar.index similar.hybrid similar.keep_fields
    score.per_token score.within_word score.layers score.idf
    tree tensors attention verify json
    duplicates.keep groups
    map.color map.clusters
    size dupe_factor config epochs batch_size learning_rate eval_dir
    task frozen eval queries qrels
    host port api_key
    device dtype output format
    models-download.revision models-remove.yes
    """.split()  # noqa: SIM905 - a list that is read downwards
)
RESUME_FOOTNOTE = "--resume goes on where the same command was interrupted."
# Choices that -h does not list: defaults and aliases.
UNLISTED = ("auto", "true", "false")


def _help_option(help_text: str, *names: str, everything: bool = True) -> Any:
    """Return an option that prints the help and exits."""

    def show(ctx: typer.Context, requested: bool) -> None:
        if requested:
            show_help(ctx, everything=everything)

    return typer.Option(
        ..., *names, help=help_text, is_eager=True, callback=show, rich_help_panel=MESSAGES
    )


# Help parameters of every command, and of command groups, whose help is always short.
HELP = {
    "help_short": _help_option("Show the common options.", "-h", everything=False),
    "help_all": _help_option("Show all options.", "--help"),
}
GROUP_HELP = {"help_all": _help_option("Show this help.", "--help", "-h")}


def show_help(ctx: typer.Context, *, everything: bool) -> None:
    """Print the help of a command and exit."""
    command: Any = ctx.command
    ctx.max_content_width = MAX_WIDTH
    page = ctx.make_formatter()
    summary, notes, examples = split_docstring(command.help or "")
    page.write_text(summary)
    for note in notes if everything else ():
        page.write_paragraph()
        page.write_text(note)
    page.write_paragraph()
    command.format_usage(ctx, page)
    if examples:
        with page.section("Examples"):
            page.write("".join(f"  {example}\n" for example in examples))
    panels = panels_of(ctx, everything=everything)
    for title, options in panels.items():
        with page.section(title):
            page.write_dl(options, NAMES_WIDTH)
    if not everything:
        can_resume = any(param.name == "resume" for param in command.params)
        footnote = f"{RESUME_FOOTNOTE}\n" if can_resume else ""
        page.write(f"\n{footnote}{ctx.command_path} --help shows all options.\n")
    print_text(page.getvalue().rstrip("\n"))
    raise typer.Exit


def panels_of(ctx: typer.Context, *, everything: bool) -> dict[str, list[tuple[str, str]]]:
    """Return the help of a command's parameters: panel -> rows of a name and its help."""
    command: Any = ctx.command
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, subcommand in getattr(command, "commands", {}).items():
        row = (name, subcommand.get_short_help_str(MAX_WIDTH))
        panels.setdefault("Commands", []).append(row)
    for param in sorted(command.params, key=lambda param: param.param_type_name):
        is_argument = param.param_type_name == "argument"
        panel = "Arguments" if is_argument else param.rich_help_panel or "Options"
        choices = getattr(param.type, "choices", ())
        if choices:
            param.metavar = param.metavar or "NAME"
        if everything:
            listed = ", ".join(choices)
        else:
            if not (is_argument or param.required or is_common(ctx, param.name)):
                continue
            panel = "Common options"
            param.help = LATER_SENTENCES.sub(".", param.help or "")
            param.show_envvar = False
            listed = ", ".join(name for name in choices if name not in UNLISTED)
        if listed:
            param.help = f"{param.help} [{listed}]"
        if param.default is True and not everything:
            panels.setdefault(panel, []).append(negation(param))
            continue
        if row := param.get_help_record(ctx):  # None for hidden parameters
            panels.setdefault(panel, []).append(row)
    return panels


def negation(param: Any) -> tuple[str, str]:
    """Return the name and the help of the --no- variant of an option that is on by default."""
    return param.secondary_opts[0], f"Do not {param.help[:1].lower()}{param.help[1:]}"


def is_common(ctx: typer.Context, name: str) -> bool:
    """Return True if -h shows an option of a command."""
    command = ctx.command_path.partition(" ")[2].replace(" ", "-")
    return name in COMMON or f"{command}.{name}" in COMMON


def split_docstring(docstring: str) -> tuple[str, list[str], list[str]]:
    """Return the summary, the notes and the examples of a docstring."""
    texts: list[str] = []
    examples: list[str] = []
    for paragraph in re.split(r"\n\s*\n", docstring.strip("\n")):
        lines = paragraph.splitlines() or [""]  # `python -OO` strips docstrings
        if lines[0].startswith("$ "):
            examples += [line.strip()[2:] for line in lines]
        else:
            texts.append(" ".join(" ".join(lines).split()))
    return texts[0], texts[1:], examples
