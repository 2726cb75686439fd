"""Help as plain text: `-h` has what most people need on one screen, `--help` has everything.

A docstring is read as: a summary, notes, and examples, which are lines that begin with $. A note
whose first line ends with a colon is a table: each line has a name, two spaces or more, and text.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any

import typer

from bertcli.cli.display.console import print_text, styled

MESSAGES = "Messages and help"  # the last panel
WIDEST = 100  # columns: longer lines are hard to read
NARROWEST = 16  # what is narrower has no room beside the names
LEFT = 28  # columns of names, at most
ROOM = 39  # columns of what is said of them, at least: the longest word fits
AUTO = "[default:\u00a0auto]"  # which -h leaves out
JOINED = "\u00a0"  # a space where no line ends
WORD = re.compile(r"(?:'[^']*'|\S)+")  # of a line of shell
SENTENCE = re.compile(r"(?<=[a-z0-9)\]])\.(?= |$)")

# The options that -h shows, of any command that has them; required ones come with them.
COMMON = frozenset(
    """
    input pairs question context corpus vectors text_field
    model max_length truncation padding overlap at first on_truncate
    tokens count stats skip_special_tokens as_ clean_up
    pooling normalize top_k threshold targets aggregation no_answer tolerance worst
    tree tensors attention verify json
    size dupe_factor config epochs batch_size learning_rate eval_dir
    task frozen eval queries qrels
    device dtype output format resume
    """.split()  # noqa: SIM905 - a list that is read downwards
)

RARE = {("embed", "overlap"), ("embed", "at")}  # which the command has for one of its modes


def _option(about: str, *names: str, everything: bool = True) -> Any:
    def show(ctx: typer.Context, asked: bool) -> None:
        if asked:
            show_help(ctx, everything=everything)

    return typer.Option(
        ..., *names, help=about, is_eager=True, callback=show, rich_help_panel=MESSAGES
    )


# The parameters of every command, and of groups of commands, whose help is short as it is.
HELP = {
    "help_short": _option("Show the common options.", "-h", everything=False),
    "help_all": _option("Show all options.", "--help"),
}
GROUP_HELP = {"help_all": _option("Show this help.", "--help", "-h")}


def show_help(ctx: typer.Context, *, everything: bool) -> None:
    """Print the help of a command, and exit."""
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
    print_text("\n".join(_Page(ctx, width, everything).lines()))
    raise typer.Exit


class _Page:
    """The help of one command, in lines of a width."""

    def __init__(self, ctx: typer.Context, width: int, everything: bool) -> None:
        self.ctx, self.width, self.everything = ctx, width, everything
        self.left = min(LEFT, max(8, width - ROOM))
        command: Any = ctx.command
        self.params = [param for param in command.params if not param.hidden]
        self.commands: dict[str, Any] = getattr(command, "commands", {})

    def lines(self) -> Iterator[str]:
        about, notes, examples = parts_of(self.ctx.command.help or "")
        yield from self._wrapped(about)
        for note in notes if self.everything else ():
            title, *lines = note.splitlines()
            rows = [re.split(" {2,}", line, maxsplit=1) for line in lines]
            yield from self._panel(title, rows) if rows else ("", *self._wrapped(note))
        yield from ("", *self._usage())
        if examples:
            yield from self._panel("Examples", ())
            for example in examples:
                yield from _folded(example, self.width)
        for title, options in self._panels().items():
            yield from self._panel(title, options)
        yield from self._end()

    def _wrapped(self, text: str, **indents: str) -> list[str]:
        return wrap(text, self.width, break_on_hyphens=False, **indents)  # type: ignore[arg-type]

    def _panel(self, title: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
        """Yield a heading, and names beside what is said of them."""
        yield from ("", styled(f"{title}:", sys.stdout, bold=True))
        for name, about in rows:
            names, indent = f"  {name}", " " * self.left
            if len(names) >= self.left:
                yield names
                names = ""
            if max(map(len, about.split(" "))) > self.width - self.left:
                about = about.replace(JOINED, " ")
            first = names.ljust(self.left)
            texts = self._wrapped(about, initial_indent=first, subsequent_indent=indent)
            yield from (text.replace(JOINED, " ") for text in texts)

    def _usage(self) -> Iterable[str]:
        more = ["COMMAND"] if self.commands else []
        for param in self.params:
            if param.param_type_name == "argument":
                name = param.metavar or param.name.upper()
                more.append(name if param.required or name.startswith("[") else f"[{name}]")
        line = " ".join([f"Usage: {self.ctx.command_path} [OPTIONS]", *more])
        return self._wrapped(line, subsequent_indent="  ")

    def _panels(self) -> dict[str, list[tuple[str, str]]]:
        """Return the rows of each panel: names, and what is said of them."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            about = first_sentence(parts_of(command.help or "")[0])
            panels.setdefault("Commands", []).append((name, about))
        for param in self.params:
            is_argument = param.param_type_name == "argument"
            is_rare = (self.ctx.command.name, param.name) in RARE
            is_common = param.required or (param.name in COMMON and not is_rare)
            if self.everything:
                panel = "Arguments" if is_argument else param.rich_help_panel or "Options"
                panels.setdefault(panel, []).append((_names(param), _described(param)))
            elif is_argument or is_common:
                rows = panels.setdefault("Common options", [])
                rows.append((_names(param), _described(param, short=True)))
        return panels

    def _end(self) -> Iterator[str]:
        path = self.ctx.command_path
        if self.commands:
            yield from ("", f"{path} COMMAND -h shows the options of a command.")
        elif not self.everything:
            count = sum(param.param_type_name == "option" for param in self.params)
            yield from ("", f"{path} --help shows all {count} options.")


def parts_of(docstring: str) -> tuple[str, list[str], list[str]]:
    """Return the summary, the notes and the examples of a docstring."""
    texts: list[str] = []
    examples: list[str] = []
    for paragraph in re.split(r"\n\s*\n", docstring.strip("\n")):
        lines = paragraph.splitlines() or [""]  # python -OO leaves no docstring
        if lines[0].startswith("$ "):
            examples += [line.strip()[2:] for line in lines]
        elif lines[0].endswith(":"):
            texts.append("\n".join([lines[0].strip()[:-1], *map(str.strip, lines[1:])]))
        else:
            texts.append(" ".join(" ".join(lines).split()))
    return texts[0], texts[1:], examples


def _folded(example: str, width: int) -> Iterator[str]:
    """Yield a line of shell; where it is too long, it goes on after a backslash."""
    line = " "
    for word in WORD.findall(example):
        if len(line) + len(word) + 3 > width and line.strip():
            yield f"{line} \\"
            line = "     "
        line += f" {word}"
    yield line


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, with its full stop."""
    end = SENTENCE.search(text)
    return text[: end.end()] if end else text


def _names(param: Any) -> str:
    """Return the names of an option or argument, and what stands for its value."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    short = [name for name in param.opts if not name.startswith("--")]
    long = [name for name in param.opts if name.startswith("--")]
    if param.secondary_opts and param.secondary_opts[0] == f"--no-{long[0][2:]}":
        long = [f"--[no-]{long[0][2:]}"]
    else:
        long += param.secondary_opts
    names = f"{'' if short else '    '}{', '.join([*short, *long])}"
    return names if param.is_flag else f"{names} {_value(param, LEFT - 4 - len(names))}"


def _value(param: Any, room: int) -> str:
    """Return what stands for a value: its choices where there is room, else a word."""
    choices = "|".join(_choices(param))
    if param.metavar or (choices and len(choices) <= room):
        return str(param.metavar or choices)
    metavars = {"integer": "N", "integer range": "N", "float": "X", "float range": "X"}
    return metavars.get(str(param.type.name), str(param.name).upper().rpartition("_")[2])


def _choices(param: Any) -> Sequence[str]:
    return getattr(param.type, "choices", ())


def _listed(param: Any) -> str:
    """Return the choices of an option, where its name does not show them."""
    choices = _choices(param)
    return f"[{', '.join(choices)}]" if choices and "|" not in _names(param) else ""


def _described(param: Any, *, short: bool = False) -> str:
    """Return the help of an option with what else there is to know of it, or ``short`` of that."""
    about = first_sentence(param.help or "") if short else param.help
    variable = f"[env:{JOINED}{param.envvar}]" if param.envvar and not short else ""
    text = " ".join(filter(None, (about, _listed(param), variable, _default(param))))
    return text.removesuffix(f" {AUTO}") if short else text


def _default(param: Any) -> str:
    if param.default is True and param.secondary_opts:
        return f"[default:{JOINED}on]"
    if param.default in (None, False, "", ()) or getattr(param, "is_flag", False):
        return ""
    return f"[default:{JOINED}{param.default}]"
