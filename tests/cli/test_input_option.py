"""Files are given one way everywhere: -i FILE, and FILE where a command takes no texts."""

import pytest
from front import TINY, bad, built, call, good

from bertcli.cli.app import COMMANDS

# Commands whose arguments are files of records.
FILE_COMMANDS = ["duplicates", "map", "train", "evaluate", "pretrain vocab", "pretrain prepare"]
# Commands without records of the input, or with two files that are not alike.
WITHOUT_INPUT = ["compare", "inspect", "export", "pretrain run"]
WITHOUT_INPUT += ["models", "models download", "models remove", "serve"]


def option_names(name):
    command = built((name,))
    for word in name.split():
        command = command.commands[word]
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in WITHOUT_INPUT])
def test_every_command_that_reads_records_takes_input(name):
    assert {"-i", "--input"} <= option_names(name)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.csv"
    path.write_text("text,label\nIt rains.,wet\nIt rains!,wet\nThe sun shines.,dry\nTea.,dry\n")
    return path


def test_duplicates_are_those_of_the_argument(corpus):
    argv = ("duplicates", "--threshold", "0.5", "-q", "-m", TINY)
    assert good(*argv, "-i", corpus).out == good(*argv, corpus).out != ""


def test_a_map_is_that_of_the_argument(corpus):
    argv = ("map", "-q", "-m", TINY, "-f", "csv")
    assert good(*argv, "-i", corpus).out == good(*argv, corpus).out != ""


def test_a_vocabulary_is_that_of_the_argument(corpus, tmp_path):
    argv = ("pretrain", "vocab", "--size", "150", "-q", "-o")
    good(*argv, tmp_path / "a", corpus)
    good(*argv, tmp_path / "b", "--input", corpus)
    assert (tmp_path / "a/vocab.txt").read_bytes() == (tmp_path / "b/vocab.txt").read_bytes()


def test_a_model_is_trained_and_evaluated_on_a_file_of_the_option(corpus, tmp_path):
    argv = ("train", "-q", "--steps", "2", "--eval-fraction", "0")
    good(*argv, "-i", corpus, "-o", tmp_path / "m")
    argv = ("evaluate", "-q", "-m", tmp_path / "m")
    assert good(*argv, "-i", corpus).out == good(*argv, corpus).out != ""


@pytest.mark.parametrize("command", FILE_COMMANDS)
def test_files_in_both_ways_are_refused(command, corpus, tmp_path):
    output = ["-o", tmp_path / "o"] if command not in ("duplicates", "evaluate", "map") else []
    refused = bad(*command.split(), corpus, "-i", corpus, *output, code=2).error
    assert refused.endswith("cannot be combined with --input")


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_one_file_is_read_of_examples(command, corpus, tmp_path):
    output = ["-o", tmp_path / "o"] if command == "train" else []
    done = call(command, "-i", corpus, "-i", corpus, *output)
    assert (done.code, done.error) == (2, "--input was given 2 times")
