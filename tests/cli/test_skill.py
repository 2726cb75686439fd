"""`bertcli --skill` prints instructions for AI agents, whose commands exist."""

import re
import shlex

from front import good, process

from bertcli.cli.app import COMMANDS


def test_it_prints_the_file_of_the_package():
    shown = good("--skill").out
    assert shown.startswith("---\nname: bertcli\n")
    for code in (0, 1, 2, 130):
        assert f"| {code} | " in shown


def test_its_commands_and_options_exist():
    shown = good("--skill").out
    (block,) = re.findall(r"```sh\n(.*?)```", shown, re.DOTALL)
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) == 5
    for program, command, *words in commands:
        assert program == "bertcli"
        assert command in COMMANDS
        options = good(command, "--help").out
        for word in words:
            if word.startswith("-"):
                assert word in options


def test_a_process_prints_it_quickly():
    done = process("--skill")
    assert done.code == 0
    assert done.out == good("--skill").out
