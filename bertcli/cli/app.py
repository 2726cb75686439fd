"""From arguments to an exit code: the commands, and the one place where errors are shown."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from bertcli.cli.display.console import say
from bertcli.cli.display.help import GROUP_HELP
from bertcli.cli.options.common import VersionOptions
from bertcli.cli.options.groups import command
from bertcli.errors import (
    BertcliError,
    InputError,
    UsageError,
    called_from_python,
    out_of_memory,
    panicked,
)
from bertcli.files.system_calls import silence
from bertcli.files.typed_json import parse

# The commands, and the module of each: "pretrain vocab" is the function pretrain_vocab in
# bertcli.cli.commands.train, a command of the group "pretrain".
COMMANDS = {
    "tokenize": "tokenize",
    "decode": "tokenize",
    "chunk": "chunk",
    "embed": "embed",
    "similar": "search",
    "duplicates": "search",
    "compare": "search",
    "inspect": "models",
    "fill-mask": "tasks",
    "next-sentence": "tasks",
    "classify": "tasks",
    "rerank": "tasks",
    "tag": "tasks",
    "answer": "tasks",
    "choose": "tasks",
    "models": "models",
    "export": "models",
    "train": "train",
    "evaluate": "train",
    "pretrain vocab": "train",
    "pretrain prepare": "train",
    "pretrain run": "train",
}
GROUPS = {"pretrain": "Pretrain a BERT: vocabulary, instances, model."}

JSON = {"-fjson": "-fjsonl", "--format=json": "--format=jsonl"}

# Options whose value is a file; "" is what a shell makes of a variable that is not set.
FILES = ("-i", "--input", "-o", "--output", "--corpus", "--vectors", "--pairs", "--files-from")

# Options that may be given without a value, and the value that they then have.
BARE = {"--keep-fields": "*", "--padding": "true", "--truncation": "true"}


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with these commands; each costs the import of its module."""
    app = _group("bertcli", bertcli)
    groups: dict[str, typer.Typer] = {}
    for name in names:
        group, _, last = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = _group(group, lambda: None)
            app.add_typer(groups[group], help=GROUPS[group])
        place = groups[group] if group else app
        place.command(last, add_help_option=False)(command(function_of(name)))
    return app


def function_of(name: str) -> Callable[..., None]:
    """Return the function of a command, with its groups of options as parameters."""
    module = import_module(f"bertcli.cli.commands.{COMMANDS[name]}")
    function: Callable[..., None] = getattr(module, name.replace(" ", "_").replace("-", "_"))
    return function


def _group(name: str, callback: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(name=name, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(add_help_option=False)(command(callback, GROUP_HELP))
    return app


def bertcli(version: VersionOptions) -> None:
    """Tokenize, embed, search and inspect text with BERT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 done, 1 failed, 2 wrong usage or 130 interrupted."""
    words = with_values(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "-h"]
    asked = [name for name in COMMANDS if name.split()[:1] == words[:1]]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # of an ASCII terminal: no character is an error
            stream.reconfigure(errors="backslashreplace")
    try:
        bare = words in ([], *([group] for group in GROUPS))  # which shows the help
        args = [*words, "-h"] if bare else words
        refuse_empty(args)
        refuse_no_folder()
        code = build(asked or COMMANDS)(args=args, prog_name="bertcli", standalone_mode=False)
    except BertcliError as error:
        if os.environ.get("BERTCLI_DEBUG"):
            raise
        return _failed(str(error), error.hint, error.exit_code)
    except USAGE as wrong:
        return _failed(*explained(wrong), 2)
    except typer.Abort:
        return _failed("unexpected end of input", "", 1)
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # `--help | head -1`
            silence(sys.stdout.fileno())
            return 0
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as failed:  # one that nothing explained where it arose
        if os.environ.get("BERTCLI_DEBUG") or not (message := _of_libraries(failed)):
            raise
        return _failed(*message, 1)
    return 2 if bare else code or 0


def _of_libraries(failed: BaseException) -> tuple[str, str] | None:
    """Return a message and a hint for what the system and libraries raise; None is our own bug."""
    if out_of_memory(failed):
        return "out of memory", "give less text at a time, or use a smaller model"
    if panicked(failed):
        return f"the tokenizer failed: {failed}", "correct the model's tokenizer.json"
    return _of_the_system(failed) if isinstance(failed, OSError) else None


def _of_the_system(failed: OSError) -> tuple[str, str]:
    """Return a message and a hint: the files that it is about, or stdout where that is at fault."""
    reason = failed.strerror or str(failed) or type(failed).__name__
    names = (failed.filename, failed.filename2)  # of an open file: a number
    files = [
        f"file {name}" if isinstance(name, int) else os.fsdecode(name)
        for name in names
        if name is not None
    ]
    if files:
        return f"{' to '.join(files)}: {reason}", ""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()  # of help and versions: what could not be written is still there
    except OSError:
        silence(sys.stdout.fileno())
        return f"stdout cannot be written: {reason}", ""
    return f"system error: {reason}", "set BERTCLI_DEBUG=1 for the traceback"


def _failed(message: str, hint: str, code: int) -> int:
    """Show an error and return its exit code; the message is empty when stderr is closed."""
    if message:
        say("error", message)
    if hint:
        say("hint", hint)
    return code


def refuse_empty(argv: Sequence[str]) -> None:
    """Raise UsageError for the name of a file that is empty."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    for option, value in (*pairwise(words), *(word.split("=", 1) for word in words if "=" in word)):
        if option in FILES and not value:
            raise UsageError(
                f"{option} is given an empty name", "is a variable of the shell unset?"
            )


def refuse_no_folder() -> None:
    """Raise InputError where the working folder was removed: libraries end the process there."""
    try:
        os.getcwd()
    except PermissionError:  # what is named by a whole path may be had all the same
        return
    except FileNotFoundError:
        raise InputError(
            "the working folder no longer exists", "change to another, or make it again"
        ) from None


def with_values(argv: Sequence[str]) -> list[str]:
    """Add the default value of options given without one, when an option follows.

    What other tools call json is jsonl here.
    """
    words: list[str] = []
    for at, argument in enumerate(argv):
        if argument == "--":
            return [*words, *argv[at:]]
        argument = JSON.get(argument, argument)
        if argument == "json" and words and words[-1] in ("-f", "--format"):
            argument = "jsonl"
        words.append(argument)
        following = argv[at + 1] if at + 1 < len(argv) else "-"
        if argument in BARE and following.startswith("-"):
            words.append(BARE[argument])
    return words


USAGE: type[Any] = typer.BadParameter.__bases__[0]  # all that the parser of Typer refuses

# What users of other tools type, and what it is called here: commands, then options, of which the
# first that the command has is named, or an argument.
COMMANDS_ELSEWHERE = {
    "similar": "search query find retrieve nearest semantic-search mine",
    "embed": "encode vectorize vectorise embedding embeddings vectors",
    "tokenize --count": "count wc count-tokens",
    "tokenize --stats": "stats statistics",
    "tokenize": "tokens",
    "decode": "detokenize untokenize",
    "chunk": "split split-text",
    "duplicates": "dedup dedupe deduplicate unique cluster",
    "train": "finetune fine-tune fit learn",
    "classify": "predict sentiment score cross-encode",
    "evaluate": "eval test benchmark",
    "tag": "ner entities",
    "answer": "qa question-answering",
    "fill-mask": "mask fill mlm",
    "inspect": "info show summary describe attention",
    "compare": "diff",
    "models": "list ls download cache",
    "--version": "version",
}
OPTIONS_ELSEWHERE = {
    "TEXT": "text sentence sentences",
    "--text-field": "text text-column column field",
    "QUERY": "query q",
    "--id-field": "id-column",
    "--label-field": "label label-column",
    "--pair-field": "pair-column",
    "--model": "model-name model-id model-path model-name-or-path checkpoint",
    "--input": "input-file file files data dataset train-file path",
    "--output": "output-file output-path output-dir out outfile save-to",
    "--corpus": "docs documents index database input",
    "--batch-tokens": "batch-size batch bs",
    "--batch-size": "batch bs train-batch-size per-device-train-batch-size",
    "--max-length": "max-len max-tokens max-seq-length max-seq-len chunk-size",
    "--overlap": "chunk-overlap",
    "--top-k": "n k limit num-results top topk",
    "--threshold": "min-score min-similarity cutoff",
    "--device cuda": "gpu cuda use-gpu",
    "--dtype float16": "fp16 half",
    "--dtype bfloat16": "bf16",
    "--dtype int8": "int8 quantize",
    "--learning-rate": "lr",
    "--epochs": "num-epochs num-train-epochs",
    "--eval": "eval-file validation validation-file dev test",
    "--format": "output-format",
    "--format jsonl": "json",
    "--format csv": "csv",
    "--json": "format f",
    "--normalize": "normalize-embeddings",
    "--overwrite": "force yes",
    "--quiet": "silent no-progress",
    "--threads": "jobs num-workers num-threads workers j",
    "--delimiter": "sep separator",
    "--offline": "local-files-only",
}

KINDS = {"int range": "whole number", "float range": "number", "int": "whole number"}
COMMAND = re.compile(r"No such command '(.*?)'")
NOT_ONE = re.compile(r"'(.*)' is not one of")
NO_SWITCH = " is not a valid boolean. Recognized values: , "  # the empty one can be no help
RANGE = re.compile(r" is not in the range (?:(\S+)<=)?x(?:([<>])=(\S+?))?\.?$")
NO_KIND = re.compile(r" is not a valid (int range|float range|int|float)\.?$")


def explained(wrong: Any) -> tuple[str, str]:
    """Return the message and the hint of an exception of the parser."""
    path = wrong.ctx.command_path if wrong.ctx else "bertcli"
    text, page = " ".join(wrong.format_message().split()), f"see {path} --help"
    if hasattr(wrong, "possibilities"):
        params = wrong.ctx.command.params
        names = [name for param in params for name in (*param.opts, _name(param).rstrip("."))]
        word = wrong.option_name.lstrip("-").replace("_", "-")
        hint = _meant(word, names, OPTIONS_ELSEWHERE)
        return f"no such option: {wrong.option_name}", hint or page
    if named := COMMAND.match(text):
        hint = _meant(named[1], [*wrong.ctx.command.commands, "--version"], COMMANDS_ELSEWHERE)
        return f"no such command: {named[1]}", hint or f"{path} -h lists the commands"
    param = getattr(wrong, "param", None)
    if param is None:
        return text[:1].lower() + text[1:].rstrip("."), page
    name = _name(param)
    if not wrong.message:
        return f"missing {param.param_type_name} {name}", f"{path} -h shows how it is used"
    choices = getattr(param.type, "choices", ())
    if choices and (refused := NOT_ONE.match(wrong.message)):
        listed = ", ".join(choices)
        if param.name == "format":
            return f"this command cannot write {refused[1]}", f"--format can be: {listed}"
        hint = f"{_meant(refused[1], choices)} choices: {listed}".strip()
        return f"invalid value for {name}: {refused[1]}", hint
    reason = RANGE.sub(_limits, wrong.message).replace(NO_SWITCH, " is not one of ")
    reason = NO_KIND.sub(lambda kind: f" is not a {KINDS.get(kind[1], 'number')}", reason)
    return f"invalid value for {name}: {reason.rstrip('.')}", page


def _limits(range_: re.Match[str]) -> str:
    """Return the range of a number in words."""
    low, sign, high = range_.groups()
    if low:
        return f" (must be {low} to {high})"
    return f" (must be at {'least' if sign == '>' else 'most'} {high})"


def _name(param: Any) -> str:
    """Return the longest name of an option, or what stands for an argument."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return str(max(param.opts, key=len))


def _meant(word: str, names: Sequence[str], elsewhere: Mapping[str, str] = {}) -> str:
    """Return a hint: what a word of other tools is called here, or else the name most like it."""
    from difflib import get_close_matches  # only what is wrong needs it

    for name, words in elsewhere.items():
        if word in words.split() and name.split()[0] in names:
            is_argument = name.isupper()
            return (
                f"{name} is an argument, without an option"
                if is_argument
                else f"did you mean {name}?"
            )
    without_dashes = {name.lstrip("-"): name for name in names}
    near = get_close_matches(word, without_dashes, n=1)
    return f"did you mean {without_dashes[near[0]]}?" if near else ""


# --- `bertcli.train` and `bertcli.evaluate`: the commands, with their options as keywords ---

OFF = {"frozen": "full"}  # flags of which False has a name of its own


@called_from_python()
def train(file: str | Path, output: str | Path, **options: Any) -> None:
    """Train a model on a file of examples, into a folder.

    ``options`` are those of `bertcli train` with underscores: ``model``, ``epochs``, ``frozen`` and
    so on. Progress and notes go to stderr, unless ``quiet``.
    """
    _run("train", file, {"output": output, **options})


@called_from_python()
def evaluate(file: str | Path, model: str | Path, **options: Any) -> dict[str, Any]:
    """Return the metrics of a model on a file of examples, with their 95 % intervals.

    ``options`` are those of `bertcli evaluate` with underscores.
    """
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        report = Path(folder, "report.jsonl")
        _run("evaluate", file, {"model": model, "output": report, **options})
        metrics: dict[str, Any] = parse(report.read_text("utf-8"))
        return metrics


def _run(command: str, file: str | Path, options: Mapping[str, Any]) -> None:
    argv = [command, *_arguments(options), "--", str(file)]
    try:
        build((command,))(args=argv, prog_name="bertcli", standalone_mode=False)
    except USAGE as wrong:
        raise UsageError(*explained(wrong)) from None


def _arguments(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        match value:
            case None:
                pass
            case True:
                yield option
            case False:
                yield from [f"--{OFF[name]}"] if name in OFF else []
            case Mapping():
                yield from (f"{option}={key}={field}" for key, field in value.items())
            case list() | tuple():
                yield from (f"{option}={item}" for item in value)
            case _:
                yield f"{option}={value}"
