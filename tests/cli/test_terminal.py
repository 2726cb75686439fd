"""What a person at a terminal sees, through a pseudo-terminal."""

import re
import subprocess
import sys

import pytest
from front import (
    PROGRAM,
    TINY,
    environment,
)
from terminal import at_terminal

CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
LINES = 5_000
ERROR = b"\x1b[31m\x1b[1merror:\x1b[0m "
# The command line, with a progress bar from the first record on instead of after a second, drawn
# at every step instead of ten times a second: what it shows does not hang on how fast this is.
IMPATIENT = """
import bertcli.cli.display.console as bars
from bertcli.__main__ import run
bars.QUIET_SECONDS = bars.REFRESH_SECONDS = 0
run()
"""


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    file = tmp_path_factory.mktemp("long") / "long.txt"
    file.write_text("".join(f"this is line number {n} of many lines\n" for n in range(LINES)))
    return file


def test_a_table_with_colours():
    code, seen = at_terminal("tokenize", "I love NLP!")
    assert code == 0
    assert b"\x1b[36m[CLS]" in seen
    lines = [line.split() for line in CONTROL.sub(b"", seen).decode().splitlines()]
    assert ["1", "1045", "i", "0", "1", "0-1"] in lines
    assert ["6", "102", "[SEP]", "0", "1", "sep"] in lines


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours(env):
    code, seen = at_terminal("tokenize", "I love NLP!", env=env)
    assert (code, b"\x1b[3" in seen) == (0, False)
    assert b"[CLS]" in seen
    if "TERM" in env:
        assert b"\x1b" not in seen


@pytest.mark.parametrize("how", ["terminal", "environment"])
@pytest.mark.parametrize("width", [40, 60, 120])
def test_the_width_is_kept(how, width):
    env, columns = ({"COLUMNS": str(width)}, 80) if how == "environment" else ({}, width)
    code, seen = at_terminal(
        "tokenize", "a rather long text " * 5, "--pair", "b", columns=columns, env=env
    )
    lines = CONTROL.sub(b"", seen).decode().splitlines()
    assert code == 0
    assert max(map(len, lines)) <= width
    digits = "".join(line for line in lines if "…" in line)
    assert digits == ""


def test_colours_are_forced(tmp_path):
    run = [*PROGRAM, "tokenize", "a", "-f"]
    forced = environment({"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    table = subprocess.run([*run, "table"], env=forced, capture_output=True, check=True)
    assert b"\x1b[36m" in table.stdout
    data = subprocess.run([*run, "jsonl"], env=forced, capture_output=True, check=True)
    assert b"\x1b" not in data.stdout
    plain = subprocess.run([*run, "table"], env=environment(), capture_output=True, check=True)
    assert b"\x1b" not in plain.stdout


def test_plain_numbers_and_texts_stay_plain():
    assert at_terminal("tokenize", "--count", "a", "a b") == (0, b"3\n4\n")
    assert at_terminal("decode", "101", "1037") == (0, b"[CLS] a\n")
    code, seen = at_terminal("tokenize", "a", "-f", "jsonl")
    assert (code, seen[:16]) == (0, b'{"input_ids":[10')


def test_nobody_types_a_corpus():
    code, seen = at_terminal("tokenize", stdin=None)
    assert (code, seen.splitlines()[0]) == (2, ERROR + b"no input")
    assert at_terminal("decode", stdin=None)[0] == 2


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors", "parquet"])
def test_binary_data_is_not_for_a_terminal(form):
    code, seen = at_terminal("tokenize", "a", "-f", form)
    assert (code, seen.splitlines()[0]) == (
        2,
        ERROR + f"{form} cannot be shown on a terminal".encode(),
    )


def impatient(*argv, **ends):
    return at_terminal(*argv, program=[sys.executable, "-c", IMPATIENT], **ends)


def test_a_progress_bar_that_leaves(tmp_path, long):
    with (tmp_path / "out").open("wb") as out:
        code, seen = impatient("tokenize", "-i", long, "--max-length", 8, stdout=out)
    assert code == 0
    assert b"texts/s" in seen and b"truncated" in seen
    bar, _, rest = seen.rpartition(b"\x1b[2K")  # the last thing it does is to clear its line
    assert b"texts/s" in bar
    assert re.fullmatch(
        rb"warning: 5,000 of 5,000 texts truncated to 8 tokens \([\d,]+ dropped\)\n", rest
    )
    assert (tmp_path / "out").read_bytes().count(b"\n") == LINES


def test_the_progress_bar_leaves_room_for_the_echo_of_an_interrupt(tmp_path, long):
    """`^C` in the last column wraps to the next line; then the bar would not be removed."""
    with (tmp_path / "out").open("wb") as out:
        _, seen = impatient("tokenize", "-i", long, stdout=out, columns=80)
    lines = [CONTROL.sub(b"", line).decode() for line in re.split(rb"[\r\n]|\x1b\[2K", seen)]
    assert max(map(len, lines)) == 80 - len("^C")


ERASED = b"\b\b  \b\b"  # of the ^C that the terminal shows
# Runs a program whose terminal sends it signals, as a shell does.
CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def at_controlling_terminal(*argv, typed):
    """Run a command at a terminal that sends it the signals of the keys that are typed."""
    program = [sys.executable, "-c", CONTROLLED, sys.executable, "-c", IMPATIENT]
    return at_terminal(*argv, program=program, typed=typed)


def test_an_interrupt_removes_the_bar_and_its_echo(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("some words in a line\n" * 1_000_000)
    out = tmp_path / "out.jsonl.gz"
    argv = ("tokenize", "-i", texts, "-o", out)
    code, seen = at_controlling_terminal(*argv, typed=[(b"texts/s", b"\x03")])
    assert code == 130
    assert ERASED in seen
    assert seen.rpartition(b"\x1b[2K")[2] == b""
    assert [*tmp_path.iterdir()] == [texts]


def test_an_interrupted_server_ends_its_line(tmp_path):
    argv = ("serve", "--port", 0)
    code, seen = at_controlling_terminal(*argv, typed=[(b"Ctrl-C stops it\r\n", b"\x03")])
    assert code == 0
    assert seen.endswith(b"stops it\n^C" + ERASED)


@pytest.mark.parametrize("why", ["quiet", "dumb", "pipe", "beside"])
def test_no_progress_bar(tmp_path, long, why):
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        code, seen = impatient(
            "tokenize",
            "-i",
            long,
            "--quiet" if why == "quiet" else "--count",
            env={"TERM": "dumb"} if why == "dumb" else {},
            stdout=None if why == "beside" else out,
            stderr=err if why == "pipe" else None,
        )
    assert (code, (tmp_path / "err").read_bytes()) == (0, b"")
    assert b"texts/s" not in seen
    assert seen == b"" or why == "beside"


@pytest.mark.parametrize("command", ["embed", "chunk"])
def test_the_bar_counts_chunks_where_texts_are_divided(tmp_path, command):
    """Of all chunks, not of the texts: "17 of about 8 texts"."""
    for number in range(40):
        (tmp_path / f"{number}.md").write_text("i love nlp. " * 100)
    argv = (command, "-i", tmp_path, "-m", TINY, "--max-length", 16)
    if command == "embed":
        argv = (*argv, "--on-truncate", "chunk", "--window", 64, "-v")
    code, seen = impatient(*argv, "-o", tmp_path / "out.jsonl")
    plain = CONTROL.sub(b"\n", seen).decode()
    assert code == 0
    counts = [
        tuple(int(number.replace(",", "")) for number in found)
        for found in re.findall(r"([\d,]+) of (?:about )?([\d,]+) chunks  [\d,]+ chunks/s", plain)
    ]
    assert counts and all(done <= total for done, total in counts)
    assert "texts/s" not in plain
    rows = len((tmp_path / "out.jsonl").read_text().splitlines())
    assert max(done for done, _ in counts) <= rows
    assert all(0.5 * rows < total < 2 * rows for _, total in counts)


def test_the_bar_of_a_model(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"i love nlp {n}\n" for n in range(10_000, 16_000)))
    options = ("-m", TINY, "--device", "cpu", "--threads", 1, "--max-length", 6)
    code, seen = impatient("embed", "-v", "-i", texts, *options, "-o", tmp_path / "out.jsonl")
    plain = CONTROL.sub(b"\n", seen).decode()
    assert code == 0
    assert re.search(r"\d,?\d* texts  [\d,]+ texts/s  [\d,]+ tokens/s ", plain)
    *_, last, written, warning = seen.rpartition(b"\x1b[2K")[2].decode().splitlines()
    assert re.fullmatch(
        r"note: 6,000 texts, 36,000 tokens in [\d.]+ s: [\d,]+ texts/s [\d,]+ tokens/s", last
    )
    assert re.fullmatch(
        r"note: vectors of 6,000 texts written to .*out\.jsonl in [\d.]+ s", written
    )
    assert warning.startswith("warning: 6,000 of 6,000 texts truncated to 6 tokens")


def test_the_bar_of_a_stream_has_no_end(tmp_path):
    """Of standard input nobody knows the length: counts and rates, and no time that is left."""
    give = subprocess.Popen(
        [sys.executable, "-c", "for n in range(600): print('i love nlp', n)"],
        stdout=subprocess.PIPE,
    )
    options = ("-m", TINY, "--device", "cpu", "--threads", 1, "--batch-tokens", 512)
    with give, (tmp_path / "out").open("wb") as out:
        code, seen = impatient("embed", *options, stdin=give.stdout, stdout=out)
    assert code == 0
    assert b" tokens/s" in seen
    assert not re.search(rb"\d:\d\d:\d\d", seen)
    assert (tmp_path / "out").read_bytes().count(b"\n") == 600


def test_errors_have_colours_on_a_terminal():
    code, seen = at_terminal("embed", "a", "--dim", "0")
    assert code == 2 and seen.startswith(ERROR)
    assert b"\n\x1b[36mhint:\x1b[0m " in seen
    assert not at_terminal("embed", "a", "--dim", "0", env={"NO_COLOR": "1"})[1].count(b"\x1b")
