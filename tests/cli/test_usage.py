"""Command lines that cannot be parsed: words of other tools are answered by ours."""

import pytest
from front import TINY, bad

COMMANDS = {
    "search": "similar",
    "encode": "embed",
    "count": "tokenize --count",
    "dedup": "duplicates",
    "dedupe": "duplicates",
    "cluster": "map",
    "ner": "tag",
    "attention": "inspect --attention TEXT",
    "index": "similar",
    "list": "models",
    "finetune": "train",
    "split": "chunk",
    "predict": "classify",
    "info": "inspect",
    "download": "models download",
    "pull": "models download",
    "rm": "models remove",
    "models list": "models",
    "models rm": "remove",
    "models fetch": "download",
}
OPTIONS = {
    "embed --text-column x": "--text-field",
    "embed --column x": "--text-field",
    "embed --batch-size 8": "--batch-tokens",
    "embed --model-name x": "--model",
    "embed --output-file x": "--output",
    "embed --gpu": "--device cuda",
    "embed --json": "--format jsonl",
    "embed --jsonl": "--format jsonl",
    "embed --sep ;": "--delimiter",
    "similar q --limit 3": "--top-k",
    "train f -o d --lr 1": "--learning-rate",
}


@pytest.mark.parametrize("word", COMMANDS)
def test_a_command_of_other_tools_is_answered_by_ours(word):
    done = bad(*word.split(), "x", code=2)
    assert done.error == f"no such command: {word.split()[-1]}"
    assert done.hint == f"did you mean {COMMANDS[word]}?"


@pytest.mark.parametrize("line", OPTIONS)
def test_an_option_of_other_tools_is_answered_by_ours(line):
    assert bad(*line.split(), code=2).hint == f"did you mean {OPTIONS[line]}?"


def test_an_option_that_is_an_argument_here():
    assert "TEXT... is an argument" in bad("embed", "--text", "a", code=2).hint
    assert "NAME is an argument" in bad("models", "download", "-m", "a/b", code=2).hint


def test_what_is_like_nothing_gets_no_suggestion():
    assert bad("xyzzy", code=2).hint == "bertcli -h lists the commands"
    assert bad("embed", "--nope", code=2).hint == "see bertcli embed --help"


@pytest.mark.parametrize(
    ("option", "value"), [("--input-format", "conll"), ("--on-truncate", "onward")]
)
def test_a_value_that_is_not_a_choice_names_its_option(option, value):
    answer = bad("embed", "a", option, value, code=2)
    assert answer.error == f"{option}: {value!r} is not a choice"


def test_a_value_that_came_from_a_variable_names_the_variable():
    argv = ("embed", "a", "-m", TINY)
    assert bad(*argv, code=2, BERTCLI_THREADS="two").error.startswith("BERTCLI_THREADS: 'two'")
    assert bad(*argv, "--threads", "two", code=2).error == "--threads: 'two' is not a whole number"
    assert bad(*argv, "--threads", "0", code=2).hint == "give 1 or more"
