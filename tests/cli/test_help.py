"""Help, short and whole; what is refused by the parser, and what it understands all the same."""

import re
from inspect import getdoc
from typing import get_args

import pytest
from front import bad, call, good
from test_architecture import options
from typer.models import OptionInfo

from bertcli.cli.app import COMMANDS, GROUPS, function_of
from bertcli.cli.display.help import split_docstring
from bertcli.cli.options.rules import RULES, parameter_name
from bertcli.tasks.registry import LEARNING_TASKS, TASK_NAMES
from bertcli.training.options import Task


def page(command, option, width, **more):
    done = good(*command.split(), option, COLUMNS=str(width), **more)
    return done.out.splitlines()


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", ["", *COMMANDS, *GROUPS])
def test_help_is_readable_at_every_width(command, option):
    pages = {width: page(command, option, width) for width in (0, 20, 80, 300)}
    words = ["".join("".join(lines).split()) for lines in pages.values()]
    assert len({*words}) == 1  # nothing is cut, and nothing hidden
    assert "[bold]" not in words[0]
    assert max(map(len, pages[300])) <= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_short_help_is_a_screen_with_examples_and_what_people_use(command):
    short, whole = page(command, "-h", 80), page(command, "--help", 80)
    assert len(short) <= 38
    assert short[-1] == f"bertcli {command} --help shows all options."
    assert f"Usage: bertcli {command} [OPTIONS]" in " ".join(short)
    assert f"bertcli {command}" in short[short.index("Examples:") + 1]
    text = " ".join(whole)
    for name in ("-i, --input", "-o, --output", "--max-length", "-m, --model"):
        assert (f" {name} " in " ".join(short)) == (f" {name} " in text), name
    names = [line.split()[:2] for line in short if line.startswith("  -")]
    assert 1 <= len(names) <= 16 or command == "models"


@pytest.mark.parametrize("command", COMMANDS)
def test_whole_help_has_every_option_and_its_variable(command):
    text = " ".join(page(command, "--help", 300))
    for of, name, option in options():
        if of == command and isinstance(option, OptionInfo) and not option.hidden:
            names = (str(option.default), *(option.param_decls or ()))
            flag = next((one for one in names if one.startswith("--")), name)
            flag = flag.partition("/")[0].strip("-_").replace("_", "-")
            assert re.search(rf"--{flag}\b", text), flag
            assert option.envvar is None or f"[env var: {option.envvar}" in " ".join(text.split())


def test_help_is_a_command_too():
    assert good("help").out == good("-h").out
    assert good("help", "embed").out == good("embed", "-h").out
    assert good("help", "pretrain", "run").out == good("pretrain", "run", "-h").out
    assert bad("help", "embd", code=2).hint == "did you mean embed?"
    assert good("-V").out == good("--version").out


@pytest.mark.parametrize("argv", [[], ["pretrain"]])
def test_without_a_command_the_help_is_shown(argv):
    done = call(*argv)
    assert (done.code, done.err) == (2, "")
    assert done.out == good(*argv, "-h").out


@pytest.mark.parametrize("rule", RULES, ids=[rule.message for rule in RULES])
def test_one_command_has_all_options_of_a_rule(rule):
    names = {parameter_name(option) for option in (rule.option, *rule.others)}
    of_commands = {(command, name) for command, name, _ in options()}
    assert any({(command, name) for name in names} <= of_commands for command in COMMANDS)


def test_h_shows_defaults():
    assert "Results per query.  [default: 10; x>=1]" in good("similar", "-h", COLUMNS="100").out
    assert "default: 0.95; 0.01<=x<=1]" in " ".join(good("duplicates", "-h").out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_name_options_that_there_are(command):
    _, _, examples = split_docstring(getdoc(function_of(command)))
    text = " ".join(page(command, "--help", 80))
    assert examples
    for example in examples:
        if "bertcli" not in example:  # another program, such as curl
            continue
        own = re.split(r"[|]", example)[-1] if f"| bertcli {command}" in example else example
        assert '!"' not in own
        for option in re.findall(r"(?<= )--?[a-z][a-z-]*", own.split("bertcli", 1)[1]):
            assert option in text, (example, option)


def test_train_says_the_fields_of_every_task():
    rows = [line.split(maxsplit=1) for line in good("train", "--help").out.splitlines() if line]
    for task in LEARNING_TASKS:
        text, pair, target, _ = task.fields
        fields = {text, pair or text, target}
        assert any(
            row[0] == f"{task.name}:" and fields <= {*re.findall(r"\w+", row[1])} for row in rows
        ), task.name


def test_the_tasks_of_train_are_the_learning_tasks():
    assert get_args(Task) == TASK_NAMES


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("map", ["--color", "--clusters"]),
        ("duplicates", ["--keep"]),
        ("similar", ["--hybrid", "--keep-fields"]),
        ("train", ["--label-field"]),
        ("evaluate", ["--label-field"]),
        ("tokenize", ["--per-file", "--pair", "--no-special-tokens", "--no-parse-special"]),
        ("embed", ["--pair", "--no-special-tokens", "--no-parse-special"]),
    ],
)
def test_short_help_has_the_options_that_make_a_command(command, names):
    text = "\n".join(page(command, "-h", 80))
    assert [name for name in names if f"  {name}" not in text] == []


def test_short_help_lists_strategies_and_formats_and_resume_once():
    text = " ".join(good("tokenize", "-h", COLUMNS="80").out.split())
    assert "[longest_first, only_first, only_second, do_not_truncate]" in text
    assert "[longest, max_length, do_not_pad]" in text
    assert "[table, jsonl, json, csv, tsv, npy, npz, safetensors, parquet, txt]" in text
    assert text.count("--resume") == 1
