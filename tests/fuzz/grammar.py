"""What a case runs: the command lines of `commands.txt`, with their choices made."""

import random
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

TEXT = Path(__file__).with_name("commands.txt").read_text("ascii").encode().decode("unicode_escape")
RULES = dict(re.findall(r"^([\w-]+): (.*)$", TEXT, re.MULTILINE))


class Command(NamedTuple):
    """Arguments, stdin, what is done with the folder of the case afterwards, and environment."""

    argv: list[str]
    stdin: bytes = b""
    after: Callable[[Path], None] | None = None
    env: Mapping[str, str] = {}

    @property
    def output(self) -> str:
        """The file or folder that is written, if any."""
        options = [option for option in ("-o", "--vectors") if option in self.argv]
        return self.argv[self.argv.index(options[0]) + 1] if options else ""


def command(dice: random.Random, rule: str, **values: str | list[str]) -> Command:
    """Return a command of a rule; a value may be several words."""
    argv: list[str] = []
    for word in shlex.split(chosen(dice, f"<{rule}>")):
        value = values.get(word[1:]) if word[:1] == "$" else None
        if isinstance(value, list):
            argv += value
        else:
            argv.append(re.sub(r"\$([a-z]+)", lambda name: str(values[name[1]]), word))
    return Command(argv)


def chosen(dice: random.Random, line: str) -> str:
    """Return a line in which rules and choices are replaced, the innermost ones first."""
    while rule := re.search(r"<([a-z-]+)>", line):
        line = line[: rule.start()] + RULES[rule[1]] + line[rule.end() :]
    while choice := re.search(r"\{([^{}]*)\}", line):
        parts = re.findall(r"(?:^|\|)(?:(\d+):)?([^|]*)", choice[1])
        weights = [int(weight or 1) for weight, _ in parts]
        (_, part) = dice.choices(parts, weights)[0]
        line = line[: choice.start()] + part + line[choice.end() :]
    return line
