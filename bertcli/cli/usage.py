"""Messages and hints for command lines that cannot be parsed.

    explain(error, commands)   # ("no such command: search", "did you mean similar?")

Names of commands and options in other tools are mapped to ours. This module is imported only after
an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from shlex import quote
from typing import Any

# Our command -> names of this command in other tools.
COMMANDS_ELSEWHERE = {
    "similar": "search query find retrieve nearest semantic-search mine index",
    "embed": "encode vectorize vectorise embedding embeddings vectors",
    "tokenize --count": "count wc count-tokens",
    "tokenize --stats": "stats statistics",
    "tokenize": "tokens tokenise tokenizer",
    "decode": "detokenize untokenize",
    "chunk": "split split-text splitter",
    "duplicates": "dedup dedupe deduplicate unique",
    "map": "cluster clusters visualize plot",
    "train": "finetune fine-tune fit learn",
    "classify": "predict sentiment cross-encode",
    "evaluate": "eval test benchmark",
    "tag": "ner entities",
    "answer": "qa question-answering",
    "fill-mask": "mask fill mlm",
    "score": "perplexity likelihood pll bertscore bert-score",
    "inspect": "info show summary describe",
    "inspect --attention TEXT": "attention",
    "compare": "diff",
    "models": "list ls cache",
    "models download": "download pull fetch get install",
    "models remove": "remove rm delete uninstall",
    "distil": "distill",
    "--version": "version",
}

# Our option or argument -> names of this option in other tools. If several match, the hint names
# the first that the command has.
OPTIONS_ELSEWHERE = {
    "TEXT...": "text texts sentence sentences",
    "--text-field": "text text-column column field",
    "QUERY": "query q",
    "--id-field": "id-column",
    "--label-field": "label label-column",
    "--pair-field": "pair-column",
    "NAME": "m model model-name model-id repo-id",
    "--model": "model-name model-id model-path model-name-or-path checkpoint",
    "--corpus": "docs documents input file files database",
    "--index": "database",
    "--input": "input-file file files data dataset train-file path",
    "FILE...": "input file files data dataset",
    "FILE": "input file files data dataset train-file",
    "--output": "output-file output-path output-dir out outfile save-to",
    "--batch-size": "batch bs train-batch-size per-device-train-batch-size",
    "--batch-tokens": "batch-size batch bs",
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
    "--format jsonl": "json jsonl",
    "--format csv": "csv",
    "--json": "format f jsonl",
    "--normalize": "normalize-embeddings",
    "--overwrite": "force yes",
    "--quiet": "silent no-progress",
    "--threads": "jobs num-workers num-threads workers j",
    "--delimiter": "sep separator",
    "--offline": "local-files-only",
    "--per-file": "by",
}

# Our command -> hint for an unexpected argument, which replaces {}.
NO_ARGUMENTS = {"answer": "give --question {} --context TEXT"}

NO_COMMAND = re.compile(r"No such command '(.*?)'")
EXTRA_ARGUMENTS = re.compile(r"extra arguments?(?:\(s\))? \((.*)\)")
NOT_A_CHOICE = re.compile(r"'(.*)' is not one of (.*)\.?$")
NOT_A_NUMBER = re.compile(r"'(.*)' is not a valid (int|float)(?: range)?\.?$")
OUT_OF_RANGE = re.compile(r"(.*) is not in the range (?:(\S+?)<=?)?x(?:(<=|<|>=|>)(\S+?))?\.?$")
SIMILARITY = 0.7  # minimum difflib ratio of a name that may have been meant


def explain(error: Any, commands: Sequence[str]) -> tuple[str, str]:
    """Return the message and the hint for an exception of Typer's parser.

    ``commands`` are the names of all commands and groups, as users type them.
    """
    command_path = error.ctx.command_path if error.ctx else "bertcli"
    see_help = f"see {command_path} --help"
    text = " ".join(error.format_message().split())
    if hasattr(error, "possibilities"):
        return f"no such option: {error.option_name}", _suggest_option(error) or see_help
    if unknown := NO_COMMAND.match(text):
        group = error.ctx.command.name
        prefix = "" if group in (None, "bertcli") else f"{group} "
        return f"no such command: {unknown[1]}", _suggest_command(unknown[1], prefix, commands)
    parameter = getattr(error, "param", None)
    if parameter is None:
        unexpected = EXTRA_ARGUMENTS.search(text)
        command = error.ctx.command.name if error.ctx else ""
        if unexpected and command in NO_ARGUMENTS:
            return _plain(text), NO_ARGUMENTS[command].format(quote(unexpected[1]))
        return _plain(text), see_help
    name = _parameter_name(parameter)
    if not error.message:
        return (
            f"missing {parameter.param_type_name} {name}",
            f"{command_path} -h shows how it is used",
        )
    message = " ".join(error.message.split())
    variable = str(parameter.envvar)
    variable_value = os.environ.get(variable)
    if variable_value and repr(variable_value)[1:-1] in message.split(" ")[0]:
        name = variable  # the value comes from the environment
    if match := NOT_A_CHOICE.match(message):
        return _not_a_choice(parameter, name, match[1])
    if match := NOT_A_NUMBER.match(message):
        number = "a whole number" if match[2] == "int" else "a number"
        return f"{name}: {match[1]!r} is not {number}", see_help
    if match := OUT_OF_RANGE.match(message):
        return f"{name}: {match[1]} is not possible", f"give {_range_in_words(match)}"
    return f"{name}: {_plain(message)}", see_help


def _suggest_option(error: Any) -> str:
    """Return the hint for an unknown option, or "" if no option is similar."""
    parameters = error.ctx.command.params
    names = [
        name
        for parameter in parameters
        for name in (*parameter.opts, *parameter.secondary_opts, _parameter_name(parameter))
    ]
    word = error.option_name.lstrip("-").replace("_", "-")
    return _suggest_name(word, names, OPTIONS_ELSEWHERE)


def _suggest_command(word: str, prefix: str, commands: Sequence[str]) -> str:
    """Return the hint for an unknown command; ``prefix`` is its group ("pretrain ") or ""."""
    names = [name.removeprefix(prefix) for name in commands if name.startswith(prefix)]
    group = prefix.strip()
    if word in COMMANDS_ELSEWHERE.get(group, "").split():
        return f"did you mean {group}?"
    other_names = {
        name.removeprefix(prefix): words
        for name, words in COMMANDS_ELSEWHERE.items()
        if name.startswith(prefix)
    }
    hint = _suggest_name(word, [*names, "--version"], other_names)
    return hint or f"bertcli {prefix}-h lists the commands"


def _suggest_name(word: str, names: Sequence[str], other_names: Mapping[str, str]) -> str:
    """Return a hint with our name for a name from another tool, or with the most similar name.

    ``other_names`` maps our names to those in other tools. Returns "" if no name is similar.
    """
    for name, words in other_names.items():
        if word in words.split() and name.split()[0] in names:
            if name.rstrip(".").isupper():
                return f"{name} is an argument: give it without an option"
            return f"did you mean {name}?"
    without_dashes = {name.lstrip("-"): name for name in names}
    close = get_close_matches(word, without_dashes, 1, SIMILARITY)
    return f"did you mean {without_dashes[close[0]]}?" if close else ""


def _not_a_choice(parameter: Any, name: str, value: str) -> tuple[str, str]:
    """Return the message and the hint for a value that is not a choice of an option."""
    choices = [choice for choice in parameter.type.choices if choice]
    listed = ", ".join(choices)
    if name == "--format":
        return f"this command cannot write {value}", f"--format can be: {listed}"
    close = get_close_matches(value.lower(), choices, 1, SIMILARITY)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{name}: {value!r} is not a choice", f"{meant}choices: {listed}"


def _range_in_words(match: re.Match[str]) -> str:
    """Return the range of a number in words, from "1<=x<=9" or "x>=1"."""
    _, low, sign, high = match.groups()
    if low:
        return f"{low} to {high}"
    return f"{high} or {'more' if sign.startswith('>') else 'less'}"


def _parameter_name(parameter: Any) -> str:
    """Return the longest name of an option, or the metavar of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def _plain(text: str) -> str:
    """Return a parser message in our style: lower case, no full stop."""
    return text[:1].lower() + text[1:].rstrip(".")
