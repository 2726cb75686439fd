"""Bad input; and real processes: exit codes, pipes, full disks, signals, slow streams, memory."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import zstandard
from front import (
    DEADLINE,
    HELLO,
    NO_BYTECODE,
    TINY,
    bad,
    call,
    environment,
    left_in,
    peak,
    process,
    shell,
    start,
    until,
)
from pyarrow import parquet, table

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")


@pytest.fixture(scope="module")
def million(tmp_path_factory):
    """A million lines: more than a pipe or a buffer holds, minutes of work in some formats."""
    file = tmp_path_factory.mktemp("million") / "million.txt"
    with file.open("w") as out:
        for start_of in range(0, 1_000_000, 10_000):
            out.writelines(f"line number {n}\n" for n in range(start_of, start_of + 10_000))
    return file


# --- the table of bad input ---------------------------------------------------------------------


def broken_json(folder):
    (folder / "bad.jsonl").write_text('{"text":"a"}\n{"text": oops}\n')
    return ["-i", "bad.jsonl"], "bad.jsonl:2: not valid JSON: Expecting value, column 10", 1


def unknown_column(folder):
    parquet.write_table(table({"text": ["a"]}), folder / "in.parquet")
    message = "in.parquet: field 'title' not found"
    return ["-i", "in.parquet", "--text-field", "title"], message, 1


def three_columns_of_parquet(folder):
    parquet.write_table(table({"a": ["x"], "b": ["y"], "c": ["z"]}), folder / "pairs.parquet")
    message = "pairs.parquet: 3 columns, but a pair has two"
    return ["--pairs", "pairs.parquet"], message, 1


def ragged_csv(folder):
    (folder / "in.csv").write_text("id,text\n1,a\n2\n")
    return ["-i", "in.csv"], "in.csv:3: 1 column, but the header has 2", 1


def cut_off_gzip(folder):
    import gzip

    (folder / "in.txt.gz").write_bytes(gzip.compress(b"hello\n" * 1000)[:-9])
    argv = ["-i", "in.txt.gz", "-o", "out.jsonl"]  # a stream has what was read before the cut
    return argv, "in.txt.gz: the compressed data is broken or truncated", 1


def parent_is_a_file(folder):
    (folder / "file").write_text("")
    return ["a", "-o", "file/x.jsonl"], "file/x.jsonl: cannot be written: Not a directory", 1


def parent_is_missing(folder):
    message = "no/x.jsonl: cannot be written: No such file or directory"
    return ["a", "-o", "no/x.jsonl"], message, 1


def output_is_a_folder(folder):
    (folder / "x.jsonl").mkdir()
    return ["a", "-o", "x.jsonl"], "x.jsonl is a folder", 1


BAD_INPUT = {
    "missing file": lambda _: (["-i", "none.txt"], "none.txt: file not found", 1),
    "directory": lambda _: (["-i", "."], ".: no files with a known suffix", 1),
    "name too long": lambda _: (["-i", "a" * 300], f"{'a' * 300}: File name too long", 1),
    "broken JSON": broken_json,
    "unknown column": unknown_column,
    "three columns of Parquet": three_columns_of_parquet,
    "ragged CSV": ragged_csv,
    "cut off gzip": cut_off_gzip,
    "parent is a file": parent_is_a_file,
    "parent is missing": parent_is_missing,
    "output is a folder": output_is_a_folder,
    "unknown suffix": lambda _: (["a", "-o", "x.doc"], "x.doc: unknown format", 1),
    "no model": lambda _: (["-m", "./none", "a"], "model './none' is neither a folder", 1),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv, message, code = BAD_INPUT[name](tmp_path)
    before = left_in(tmp_path)
    assert bad("tokenize", *argv, code=code).error.startswith(message)
    assert left_in(tmp_path) == before


def test_debug_shows_the_traceback():
    done = process("tokenize", "-i", "none.txt", env={"BERTCLI_DEBUG": "1"})
    assert done.code == 1
    assert "Traceback" in done.err
    assert done.err.rstrip().endswith("InputError: none.txt: file not found")


# --- a disk that is full ------------------------------------------------------------------------

FORMS = ["jsonl", "csv", "parquet", "npy", "npz", "safetensors", "jsonl.gz", "jsonl.zst"]


@pytest.mark.parametrize("suffix", FORMS)
def test_a_file_that_grows_too_large(tmp_path, suffix):
    lines = "".join(f"{n * 7919 % 9973} {n * 104729 % 9967}\n" for n in range(20_000))
    (tmp_path / "in.txt").write_text(lines)
    command = f"tokenize -i in.txt --padding max_length --max-length 12 -o x.{suffix}"
    done = shell(f"ulimit -f 24; exec bertcli {command}", cwd=tmp_path, env=NO_BYTECODE)
    assert (done.code, done.out) == (1, "")
    errors = [line for line in done.err.splitlines() if not line.startswith("warning")]
    assert errors == [
        f"error: x.{suffix}: cannot be written: File too large",
        "hint: free disk space, or choose another place",
    ]
    assert left_in(tmp_path) == ["in.txt"]


@needs_full
@pytest.mark.parametrize(
    "command",
    [
        "tokenize hello",
        "tokenize hello -f npz",
        "tokenize hello --count",
        "tokenize --from-tokens hello -f table",
        "decode 101 -f parquet",
    ],
)
def test_stdout_is_full(tmp_path, command):
    done = shell(f"bertcli {command} > /dev/full", cwd=tmp_path)
    assert done.code == 1
    assert done.error == "stdout: cannot be written: No space left on device"


@needs_full
def test_a_device_is_written_as_it_is():
    done = process("tokenize", "a", "-f", "jsonl", "-o", "/dev/full")
    assert done.error == "/dev/full: cannot be written: No space left on device"
    assert FULL.is_char_device()


# --- a pipe whose reader leaves -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "first"),
    [
        ("tokenize", '{"input_ids":[101,2240,2193,1014,102],'),
        ("tokenize -f csv", "input_ids,token_type_ids,attention_mask"),
        ("tokenize -f table", "line number 0"),
        ("tokenize --from-tokens -q", '{"input_ids":[2240,2193,'),
    ],
)
def test_head(tmp_path, million, command, first):
    lines = 400 if "table" in command else 1_000_000  # a window of tables is drawn at once
    cut = f"head -{lines} {million} > some.txt; bertcli {command} -i some.txt | head -1"
    done = shell(f"{cut}; echo ${{PIPESTATUS[0]}}", cwd=tmp_path)
    line, code = done.out.splitlines()
    assert line.startswith(first)
    assert (code, done.err) == ("0", "")


def test_head_of_a_stream_without_end(tmp_path):
    done = shell("yes hello | bertcli tokenize | bertcli decode | head -2", cwd=tmp_path)
    assert done == (0, b"[CLS] hello [SEP]\n" * 2, "")


@pytest.mark.parametrize("form", ["parquet", "npy", "npz", "safetensors"])
def test_head_of_binary_data(tmp_path, million, form):
    script = f"head -50000 {million} | bertcli tokenize --padding max_length --max-length 8"
    done = shell(f"{script} -f {form} | head -c 1 | wc -c; echo ${{PIPESTATUS[1]}}", cwd=tmp_path)
    assert done == (0, b"1\n0\n", "")


# --- signals ------------------------------------------------------------------------------------

SIGNALS = [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)]


@pytest.mark.parametrize(
    ("name", "code", "suffix"),
    [(*sent, suffix) for sent, suffix in zip(SIGNALS, ("jsonl", "parquet", "npy"), strict=True)],
)
def test_a_signal_during_a_long_run(tmp_path, million, name, code, suffix):
    options = ("--padding", "max_length", "--max-length", "64", "-o", f"x.{suffix}")
    with start("tokenize", "-i", million, *options, cwd=tmp_path) as running:
        until(lambda: left_in(tmp_path))  # the file beside its name
        running.send_signal(getattr(signal, name))
        out, err = running.communicate(timeout=DEADLINE)
    assert (running.returncode, out, err) == (code, b"", b"")
    assert left_in(tmp_path) == []


LASTING = """
class Lasting:
    def __del__(self):
        print("taken apart")

def beside():
    threading.main_thread().join()
    print("beside")

def main():
    print("main")
    threading.Thread(target=beside, daemon={daemon}).start()
    return {code}

lasting = Lasting()
atexit.register(print, "at the end")
"""
ALL = ["main", "beside", "at the end", "taken apart"]

# What stands in the place of the command line, its exit code, and what it prints.
ENDS = {
    "a signal in __del__, where Python ignores exceptions": (
        """
        class Dying:
            def __del__(self):
                signal.raise_signal(signal.SIGTERM)

        def main():
            Dying()
            time.sleep(60)
        """,
        143,
        [],
    ),
    # A dataclass is made by such code; after it, `python -m` would end by SIGINT, not a code.
    "a signal in code that stood in a string": (
        """
        def main():
            exec("signal.raise_signal(signal.SIGINT)", globals())
        """,
        130,
        [],
    ),
    # As torch's does of an interrupt while it looks at what it was given, and NumPy's import.
    "a signal that C code makes another exception of": (
        """
        def main():
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                raise ImportError("could not determine the shape") from None
        """,
        143,
        [],
    ),
    # It takes nothing apart, but waits for what Python waits for, and loses no output.
    "success": (LASTING.format(daemon=True, code=0), 0, ["main", "at the end"]),
    "success beside a thread": (LASTING.format(daemon=False, code=0), 0, ALL),
    "failure beside a thread": (LASTING.format(daemon=False, code=1), 1, ALL),
}


@pytest.mark.parametrize("how", ENDS)
def test_how_a_process_ends(tmp_path, how):
    main, code, lines = ENDS[how]
    imports = "import atexit, signal, sys, threading, time, bertcli.cli.app\n"
    script = f"{imports}{textwrap.dedent(main)}\nbertcli.cli.app.main = main\n"
    (tmp_path / "inside.py").write_text(f"{script}from bertcli.__main__ import run\nrun()\n")
    program = [sys.executable, "-m", "inside"]
    done = subprocess.run(
        program, capture_output=True, cwd=tmp_path, env=environment(), timeout=DEADLINE / 2
    )
    assert (done.returncode, done.stdout.decode().splitlines(), done.stderr) == (code, lines, b"")


@pytest.mark.parametrize(("name", "code"), SIGNALS)
def test_a_signal_while_waiting_for_input(tmp_path, name, code):
    with start("tokenize", "-o", "x.jsonl", cwd=tmp_path) as running:
        running.stdin.write(b"hello\n")
        running.stdin.flush()
        until(lambda: left_in(tmp_path))
        running.send_signal(getattr(signal, name))
        assert running.wait(DEADLINE) == code
        assert (running.stdout.read(), running.stderr.read()) == (b"", b"")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("call", ["mkdir", "open", "fstat", "listdir", "unlink", "close", "rmdir"])
def test_a_signal_while_the_lock_is_made_or_removed(tmp_path, call):
    (tmp_path / "inside.py").write_text(
        "import os, signal\n"
        "import bertcli.cli.app\n"
        "made = False\n"
        "def interrupting(call):\n"
        "    def inner(*args, **options):\n"
        "        global made\n"
        "        result = call(*args, **options)\n"
        f"        if call.__name__ == {call!r} and (made or call.__name__ == 'mkdir'):\n"
        "            setattr(os, call.__name__, call)\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "        made = made or call.__name__ == 'mkdir'\n"
        "        return result\n"
        "    return inner\n"
        f"for name in {{'mkdir', {call!r}}}:\n"
        "    setattr(os, name, interrupting(getattr(os, name)))\n"
        "from bertcli.__main__ import run\n"
        "run()\n"
    )
    program = [sys.executable, "-B", "-m", "inside", "tokenize", "hello", "-o", "x.jsonl"]
    done = subprocess.run(program, capture_output=True, cwd=tmp_path, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (143, b"", b"")
    assert {*left_in(tmp_path)} <= {"inside.py", "x.jsonl"}


def test_a_signal_in_the_middle_of_a_commit(tmp_path):
    (tmp_path / "inside.py").write_text(
        "import os, signal\n"
        "replace = os.replace\n"
        "def interrupting(source, target, **options):\n"
        "    replace(source, target, **options)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.replace = interrupting\n"
        "from bertcli.__main__ import run\n"
        "run()\n"
    )
    (tmp_path / "x.txt").write_text("hello\nhello again\n")
    program = [sys.executable, "-B", "-m", "inside"]
    argv = ["embed", "-m", TINY, "-i", "x.txt", "-o", "x.npy"]
    done = subprocess.run(
        [*program, *map(str, argv)], capture_output=True, cwd=tmp_path, env=environment()
    )
    note = b"note: interrupted; 2 records are kept; continue with --resume\n"
    assert (done.returncode, done.stderr) == (143, note)
    assert process(*argv, "--resume", cwd=tmp_path).code == 0


def test_a_kill_leaves_nothing_under_the_name(tmp_path, million):
    with start("tokenize", "-i", million, "-o", "x.jsonl", "--tokens", cwd=tmp_path) as running:
        until(lambda: any(path.stat().st_size for path in tmp_path.glob("*/*")))
        running.kill()
        assert running.wait(DEADLINE) == -signal.SIGKILL
    assert "x.jsonl" not in left_in(tmp_path)
    done = process("tokenize", "hello", "-o", "x.jsonl", cwd=tmp_path)  # and stops no later run
    assert done.code == 0
    assert (tmp_path / "x.jsonl").read_text() == HELLO


def test_an_overwritten_file_survives_a_kill(tmp_path, million):
    (tmp_path / "x.jsonl").write_text("old")
    options = ("-o", "x.jsonl", "--overwrite", "--tokens")
    with start("tokenize", "-i", million, *options, cwd=tmp_path) as running:
        until(lambda: len(left_in(tmp_path)) == 2)
        running.kill()
        running.wait(DEADLINE)
    assert (tmp_path / "x.jsonl").read_text() == "old"


def test_what_nohup_ignores_stays_ignored(tmp_path):
    """A shell ignores SIGINT for `&`, nohup ignores SIGHUP: neither may end the run."""
    command = f"trap '' INT HUP; exec \"{sys.executable}\" -m bertcli tokenize"
    with subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as running:
        running.stdin.write(b"hello\n")
        running.stdin.flush()
        assert running.stdout.readline().decode() == HELLO
        running.send_signal(signal.SIGINT)
        running.send_signal(signal.SIGHUP)
        out, _ = running.communicate(b"hello\n", timeout=DEADLINE)
    assert (running.returncode, out.decode()) == (0, HELLO)


# --- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "question", "answer"),
    [
        (["tokenize"], b"hello\n", HELLO.encode()),
        (["tokenize", "--count"], b"hello\n", b"3\n"),
        (["tokenize", "-0"], b"hello\0", HELLO.encode()),
        (["tokenize", "--input-format", "jsonl"], b'{"text":"hello"}\n', HELLO.encode()),
        (["decode"], b"[101,7592,102]\n", b"[CLS] hello [SEP]\n"),
        (["decode", "--input-format", "jsonl"], b"[101]\n", b"[CLS]\n"),
    ],
)
def test_a_slow_stdin_is_answered_line_by_line(command, question, answer):
    with start(*command) as running:
        for _ in range(5):
            running.stdin.write(question)
            running.stdin.flush()
            assert running.stdout.readline() == answer
        rest, err = running.communicate(timeout=DEADLINE)
    assert (running.returncode, rest, err) == (0, b"", b"")


def test_stdin_that_is_closed():
    done = shell("bertcli tokenize <&-", cwd=Path.cwd())
    assert (done.code, done.out) == (0, "")
    assert done.err == "note: no records: the input is empty\n"


def test_order_and_number_of_a_long_stream(tmp_path, million):
    done = shell(
        f"head -100000 {million} > some; bertcli tokenize -i some"
        " | bertcli decode --skip-special-tokens | cmp - some && echo same",
        cwd=tmp_path,
    )
    assert done == (0, b"same\n", "")


@pytest.mark.parametrize("form", ["jsonl", "parquet", "npy"])
def test_memory_does_not_grow_with_the_input(tmp_path, form):
    words = ["a", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "again"]
    lines = [f"{' '.join(words[n % 7 :] + words[: n % 5])} {n}\n" for n in range(15_000)]
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    small.write_text("".join(lines))
    times = 40 if form == "jsonl" else 8
    with large.open("w") as out:
        for _ in range(times):
            out.writelines(lines)
    options = (
        ("--max-length=16", "--truncation=true", "--padding=max_length") if form == "npy" else ()
    )
    options = ("-q", "-f", form, *options)
    assert peak("tokenize", "-i", str(large), *options) < 30 + peak(
        "tokenize", "-i", str(small), *options
    )


def test_memory_is_not_that_of_what_a_small_file_unpacks_to(tmp_path):
    bomb = tmp_path / "zeros.txt.zst"
    bomb.write_bytes(zstandard.ZstdCompressor().compress(bytes(1 << 30)))
    assert bomb.stat().st_size < 40_000
    skipping = ("tokenize", "-q", "--on-error", "skip", "-i", str(bomb))
    assert peak(*skipping, code=1) < 150 + peak("tokenize", "-q", "hello")


@pytest.mark.parametrize("form", ["parquet", "txt"])
def test_windows_are_bounded_by_bytes_too(tmp_path, form):
    text, path = "\0" * 500_000, tmp_path / f"in.{form}"  # which take no time
    if form == "parquet":
        parquet.write_table(table({"text": [text] * 550}), path)
        assert path.stat().st_size < 40_000
    else:
        path.write_text(f"{text}\n" * 550)
    options = ("-q", "--padding=true", "--truncation=true")
    assert peak("tokenize", "-i", str(path), *options) < 250 + peak("tokenize", "hello", *options)


def test_duplicates_hold_little_of_each_text(tmp_path):
    few, many = tmp_path / "few.txt", tmp_path / "many.txt"
    few.write_text("\n" * 100)
    many.write_text("\n" * 200_000)
    argv = ("duplicates", "-q", "-m", TINY, "-o", str(tmp_path / "out.csv"), "--overwrite")
    assert peak(*argv, str(many)) < 90 + peak(*argv, str(few))


def open_files(running):
    """Return what a process has open, by the names that Linux gives it."""
    folder = Path(f"/proc/{running.pid}/fd")
    try:
        return [os.readlink(folder / name) for name in os.listdir(folder)]
    except OSError:  # it ended, or closed one meanwhile
        return []


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name, and what is open")
@pytest.mark.parametrize("command", ["duplicates", "map", "similar"])
def test_temporary_vectors_have_no_name_that_a_kill_could_leave(command, tmp_path):
    (temporary := tmp_path / "temporary").mkdir()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"number {row}\n" for row in range(30_000)))
    argv = {
        "duplicates": ("duplicates", corpus),
        "map": ("map", corpus, "-o", tmp_path / "map.html"),
        "similar": ("similar", "number", "--corpus", corpus, "--hybrid"),
    }[command]

    def has_written():
        assert running.poll() is None
        return any(
            path.startswith(str(temporary)) and path.endswith("(deleted)")
            for path in open_files(running)
        )

    with start(*argv, "-m", TINY, env={"TMPDIR": str(temporary)}) as running:
        until(has_written)
        assert [*temporary.iterdir()] == []
        running.kill()
    assert [*temporary.iterdir()] == []


REPEATED = """
import os, sys
from bertcli.cli.app import main

sys.stdout = open(os.devnull, "w")
counts = []
for _ in range(6):
    assert main(sys.argv[1:]) == 0
    counts.append([len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))])
print(counts, file=sys.stderr)
files, threads = zip(*counts[2:])
sys.exit(max(files) > counts[1][0] + 1 or max(threads) > counts[1][1] + 4)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has open")
def test_a_command_that_is_called_again_keeps_no_file_and_no_thread(tmp_path):
    (corpus := tmp_path / "corpus.txt").write_text("a cat\na dog\nthe sea\n")
    argv = ["similar", "-q", "cat", "--corpus", str(corpus), "--threads", "2"]
    program = [sys.executable, "-c", REPEATED, *argv]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on memory that is heeded")
@pytest.mark.parametrize("megabytes", [50, 53, 350, 450])
def test_too_little_memory_is_one_error(tmp_path, megabytes):
    limit = f"ulimit -v {megabytes << 10}; {sys.executable} -m bertcli"
    done = shell(
        f"{limit} {'tokenize' if megabytes < 100 else 'embed --backend torch'} hello", cwd=tmp_path
    )
    enough = megabytes < 100 and done.code == 0  # libraries of another version take less
    assert enough or done.error == "out of memory"


def test_no_folder_of_the_system_is_needed(tmp_path):
    """A cache that cannot be made is no reason to fail: the default model needs none."""
    done = process("tokenize", "hello", env={"HOME": "/proc/none", "HF_HOME": "/proc/none"})
    assert done == (0, HELLO.encode(), "")


@pytest.mark.skipif(os.name == "nt", reason="a folder that is in use cannot be removed")
@pytest.mark.parametrize("command", ["compare a.npy b.npy", "embed hi -o a.npy", "tokenize hi"])
def test_a_working_folder_that_was_removed(tmp_path, monkeypatch, command):
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    done = call(*command.split())
    assert done.code in (0, 1) and "Traceback" not in done.err
