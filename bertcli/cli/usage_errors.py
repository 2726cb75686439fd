"""What the parser of the command line refuses, in the words of other errors: a line, and a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import typer

USAGE: type[Any] = typer.BadParameter.__bases__[0]  # all that the parser of Typer refuses

KINDS = {"int range": "whole number", "float range": "number", "int": "whole number"}
COMMAND = re.compile(r"No such command '(.*?)'")
NOT_ONE = re.compile(r"'(.*)' is not one of")
NO_KIND = re.compile(r" is not a valid (int range|float range|int|float)\.?$")


def explained(wrong: Any) -> tuple[str, str]:
    """Return the message and the hint of an exception of the parser."""
    path = wrong.ctx.command_path if wrong.ctx else "bertcli"
    text = " ".join(wrong.format_message().split())
    if hasattr(wrong, "possibilities"):
        near = [name for name in wrong.possibilities or () if _alike(wrong.option_name, name)]
        return f"no such option: {wrong.option_name}", _meant(near, path, "options")
    if named := COMMAND.match(text):
        commands = getattr(wrong.ctx.command, "commands", ())
        near = get_close_matches(named[1], commands)
        return f"no such command: {named[1]}", _meant(near, path, "commands")
    choices = (
        getattr(getattr(wrong.param, "type", None), "choices", ()) if _has_param(wrong) else ()
    )
    if choices and (refused := NOT_ONE.match(wrong.message)):
        return _no_choice(refused[1], wrong.param, choices)
    if _has_param(wrong):
        name = _name(wrong.param)
        if not wrong.message:
            return (
                f"missing {wrong.param.param_type_name} {name}",
                f"{path} -h shows how it is used",
            )
        said = NO_KIND.sub(lambda kind: f" is not a {KINDS.get(kind[1], 'number')}", wrong.message)
        return f"invalid value for {name}: {said.rstrip('.')}", f"see {path} --help"
    return text[:1].lower() + text[1:].rstrip("."), f"see {path} --help"


def _alike(wrong: str, name: str) -> bool:
    """Tell whether two options are alike without their dashes, which all of them share."""
    return bool(get_close_matches(wrong.lstrip("-"), [name.lstrip("-")]))


def _has_param(wrong: Any) -> bool:
    return getattr(wrong, "param", None) is not None


def _name(param: Any) -> str:
    """Return the longest name of an option, or what stands for an argument."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return str(max(param.opts, key=len))


def _no_choice(value: str, param: Any, choices: Sequence[str]) -> tuple[str, str]:
    if param.name == "format":
        return f"this command cannot write {value}", f"--format can be: {', '.join(choices)}"
    near = get_close_matches(value, choices, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"invalid value for {_name(param)}: {value}", f"{meant}choices: {', '.join(choices)}"


def _meant(near: Sequence[str] | None, path: str, what: str) -> str:
    """Return a hint that names what is near, or else where to look."""
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"{path} -h lists the {what}" if what == "commands" else f"see {path} --help"
