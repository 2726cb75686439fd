"""Run the command line: build the commands, parse arguments, show errors, return the exit code."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import typer

from bertcli.cli.display.console import say
from bertcli.cli.display.help import GROUP_HELP
from bertcli.cli.options.common import VersionOptions
from bertcli.cli.options.groups import command
from bertcli.errors import (
    BertcliError,
    UsageError,
    out_of_memory,
    panicked,
)
from bertcli.io.system_calls import silence

# Command -> its module: "pretrain vocab" is the function `pretrain_vocab` in
# bertcli.cli.commands.train, in the group "pretrain". "models" is both a group and a command.
COMMANDS = {
    "tokenize": "tokenize",
    "decode": "tokenize",
    "chunk": "chunk",
    "embed": "embed",
    "similar": "search",
    "duplicates": "search",
    "compare": "search",
    "map": "map",
    "inspect": "models",
    "fill-mask": "tasks",
    "next-sentence": "tasks",
    "classify": "tasks",
    "rerank": "tasks",
    "tag": "tasks",
    "answer": "tasks",
    "choose": "tasks",
    "score": "score",
    "export": "models",
    "distil": "models",
    "train": "train",
    "evaluate": "train",
    "serve": "serve",
    "models": "models",
    "models download": "models",
    "models remove": "models",
    "pretrain vocab": "train",
    "pretrain prepare": "train",
    "pretrain run": "train",
}
GROUPS = {"pretrain": "Pretrain a BERT: vocabulary, instances, model."}

# Options that may be given without a value -> the value they then have.
BARE_VALUES = {
    "--keep-fields": "*",
    "--padding": "true",
    "--redact": "*",
    "--truncation": "true",
}


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the Typer app with the commands of these names, whose modules are imported."""
    app = _group("bertcli", bertcli)
    groups = {"": app}
    for name in names:
        group, _, command_name = name.rpartition(" ")
        if any(other.startswith(f"{name} ") for other in COMMANDS):
            group = name
        if group not in groups:
            groups[group] = _subgroup(group)
            app.add_typer(groups[group])
        if group != name:
            function = command(function_of(name))
            groups[group].command(command_name, add_help_option=False)(function)
    return app


def function_of(name: str) -> Callable[..., None]:
    """Return the function of a command, whose parameters are option groups."""
    module = import_module(f"bertcli.cli.commands.{COMMANDS[name]}")
    return getattr(module, name.replace(" ", "_").replace("-", "_"))


def _group(name: str, callback: Callable[..., None]) -> typer.Typer:
    """Return a Typer app that only has options and subcommands."""
    app = typer.Typer(name=name, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(add_help_option=False)(command(callback, GROUP_HELP))
    return app


def _subgroup(name: str) -> typer.Typer:
    """Return the Typer app of a command group, which may also be a command itself."""
    if name not in COMMANDS:
        group = _group(name, lambda: None)
        group.info.help = GROUPS[name]
        return group
    group = typer.Typer(
        name=name,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        invoke_without_command=True,
        subcommand_metavar="[COMMAND] [ARGS]...",
    )
    function = command(function_of(name))
    group.callback(add_help_option=False)(_run_without_subcommand(function))
    return group


def _run_without_subcommand(run: Callable[..., None]) -> Callable[..., None]:
    """Return a callback that runs a group's own command if no subcommand follows.

    Raises UsageError for options before a subcommand, which would have no effect.
    """
    signature = inspect.signature(run)

    @wraps(run)
    def run_alone(context: typer.Context, **values: Any) -> None:
        if context.invoked_subcommand is None:
            run(**values)
            return
        for parameter in context.command.params:
            source = context.get_parameter_source(str(parameter.name))
            if source is not None and source.name == "COMMANDLINE":
                option = max(parameter.opts, key=len)
                path = f"{context.command_path} {context.invoked_subcommand}"
                raise UsageError(
                    f"{option} is an option of {context.command_path}",
                    f"options of {path} follow it; see {path} --help",
                )

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *signature.parameters.values()]
    run_alone.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run_alone.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_alone


def bertcli(version: VersionOptions) -> None:
    """Tokenize, embed, search and inspect text with BERT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return 0 (success), 1 (failure), 2 (wrong usage) or 130 (interrupted)."""
    limit_spinning()
    words = with_bare_values(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "-h"]
    requested = [name for name in COMMANDS if name.split()[:1] == words[:1]]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # escape characters an ASCII terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        without_command = not words or (len(words) == 1 and words[0] in GROUPS)
        args = [*words, "-h"] if without_command else words
        if any(word.endswith("-completion") for word in words):
            complete_zsh_at_first_tab()
        code = build(requested or COMMANDS)(args=args, prog_name="bertcli", standalone_mode=False)
    except BertcliError as error:
        if os.environ.get("BERTCLI_DEBUG"):
            raise
        return _show_error(error.marked, error.marked_hint, error.exit_code)
    except PARSER_ERROR as error:
        return _show_error(*explain_usage(error), 2)
    except typer.Abort:
        return _show_error("unexpected end of input", "", 1)
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # `--show-completion bash | head -1`
            silence(sys.stdout.fileno())
            return 0
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:  # not raised as a BertcliError
        known = _explain_known(error)
        if os.environ.get("BERTCLI_DEBUG") or known is None:
            raise
        message, hint = known
        return _show_error(message, hint, 1)
    return 2 if without_command else code or 0


# Settings for idle OpenMP threads: spin iterations (libgomp), milliseconds (Intel and LLVM).
SPIN_SETTINGS = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}


def limit_spinning() -> None:
    """Let idle torch threads sleep early, unless OMP_WAIT_POLICY is set.

    libgomp spins for 300,000 iterations by default, which slows down working threads if other
    processes need the cores. It reads the environment when torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in SPIN_SETTINGS.items():
            os.environ.setdefault(name, value)


def complete_zsh_at_first_tab() -> None:
    """Make the zsh completion script complete at the first Tab of a session.

    Typer's script only defines a function then. Source: the zsh script of Click.
    """
    from typer import _completion_shared

    register = "compdef %(complete_func)s %(prog_name)s"
    define_and_complete = f"""if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  %(complete_func)s "$@"
else
  {register}
fi"""
    scripts = _completion_shared._completion_scripts
    if define_and_complete not in scripts["zsh"]:
        scripts["zsh"] = scripts["zsh"].replace(register, define_and_complete)


def _explain_known(error: BaseException) -> tuple[str, str] | None:
    """Return message and hint for a known error of the system or a library; None for a bug."""
    if out_of_memory(error):
        return "out of memory", "give less text at a time, or use a smaller model"
    if isinstance(error, RecursionError):
        return "lists or objects in the input are nested too deeply", "flatten them"
    if panicked(error):
        return f"the tokenizer failed: {error}", "correct the model's tokenizer.json"
    return _explain_system_error(error) if isinstance(error, OSError) else None


def _explain_system_error(error: OSError) -> tuple[str, str]:
    """Return a message with the names of the files involved, and a hint."""
    reason = error.strerror or str(error) or type(error).__name__
    files = [
        f"file {name}" if isinstance(name, int) else os.fsdecode(name)  # int: a file descriptor
        for name in (error.filename, error.filename2)
        if name is not None
    ]
    if files:
        return f"{' to '.join(files)}: {reason}", ""
    return f"system error: {reason}", "set BERTCLI_DEBUG=1 for the traceback"


def _show_error(message: str, hint: str, code: int) -> int:
    """Show an error and return its exit code. The message is empty if stderr is closed."""
    if message:
        say("error", message)
    if hint:
        say("hint", hint)
    return code


def with_bare_values(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the value of `BARE_VALUES` after each option that lacks one."""
    words: list[str] = []
    for index, argument in enumerate(argv):
        if argument == "--":
            return [*words, *argv[index:]]
        words.append(argument)
        following = argv[index + 1] if index + 1 < len(argv) else "-"
        if argument in BARE_VALUES and following.startswith("-"):
            words.append(BARE_VALUES[argument])
    return words


PARSER_ERROR: type[Any] = typer.BadParameter.__bases__[0]  # base class of Typer's parser errors


def explain_usage(error: Any) -> tuple[str, str]:
    """Return the message and the hint for an exception of the parser."""
    from bertcli.cli.usage import explain  # imported only for errors

    return explain(error, [*COMMANDS, *GROUPS])
