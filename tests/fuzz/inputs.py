"""Inputs in which something is wrong, of every format, and the commands that read them."""

import gzip
import io
import json
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import zstandard
from safetensors import SafetensorError
from safetensors.numpy import save as safetensors_of

from .craft import bomb, mutated_npy, mutated_safetensors, npy, odd_array, odd_line
from .folders import HEADS, ordinary
from .grammar import Command, command
from .values import Raw, dump, mutated_bytes, mutated_json, odd

LINE = "the film was good I love NLP ! Straße 中文 [MASK] 😀 U.S. don't [SEP] \u0130 e\u0301"
WORDS = LINE.split()
ODD_NAMES = ["\x1b]0;x\x07", "a" * 235, "\udcff", "[red]x", "\u202e", "a\nb", " ", "'", "nowhere/a"]


def build(seed: int, sound: Path, case: Path) -> list[Command]:
    """Make the inputs of a case, in ``case``, and return what is run over them."""
    dice = random.Random(f"input {seed}")
    (make,) = dice.choices([_text, _vectors, _resume, _stdin, _chain], [3, 1, 2, 1, 1])
    commands = make(dice, sound, case)
    return _renamed(commands, dice, case) if dice.random() < 0.06 else commands


def _renamed(commands: list[Command], dice: random.Random, case: Path) -> list[Command]:
    """Give files that are read, or the output, names that are not usual."""
    name = dice.choice(ODD_NAMES)
    inputs = [path.name for path in case.iterdir() if path.is_file()]
    longest = 255 - max(map(len, inputs), default=0)  # bytes of a name that can be made
    renamed = {old: name[:longest] + old for old in inputs}
    if "/" in name or dice.random() < 0.5:
        outputs = {run.output for run in commands if run.output} - {*inputs}
        renamed = {output: name + output for output in outputs}
    for old, new in renamed.items():
        if (case / old).exists():
            (case / old).rename(case / new)
    return [
        run._replace(argv=[renamed.get(word, word) for word in run.argv], after=None)
        for run in commands
    ]


# --- text ---------------------------------------------------------------------------------------


def text(dice: random.Random) -> str:
    """Return a few words, seldom none, with characters that matter to some format."""
    words = " ".join(dice.choices(WORDS, k=dice.choice([0, 1, 3, 8, 60])))
    mask = " [MASK]" if dice.random() < 0.3 else ""
    odd_ends = ["\t", '"', ",", "\r", "\x00", "\x1b]0;x\x07", "\u2028", "\ufeff", "\\"]
    return words + mask + (dice.choice(odd_ends) if dice.random() < 0.15 else "")


def record(dice: random.Random, fields: list[str]) -> dict[str, Any]:
    """Return a record for a command that asks for these fields."""
    row: dict[str, Any] = {name: text(dice) for name in fields}
    if "choices" in row:
        row["choices"] = [text(dice) for _ in range(dice.choice([0, 1, 2, 2, 3]))]
    if dice.random() < 0.6:
        row["id"] = dice.choice(["r1", 7, "\u0130", "a\tb", -1, 10**18])
    for name in dice.sample(["label", "stars", "n_tokens", "input_ids", "vector", "truncated"], 2):
        row[name] = dice.choice(["x", 1, 2.5, None, True, [1, 2], {"a": [None]}])
    return row


def json_lines(dice: random.Random, fields: list[str]) -> bytes:
    """Return JSON lines some of which are not as they should be; of half the files none is."""
    lines, broken = [], dice.random() < 0.5
    for _ in range(dice.choice([0, 1, 3, 3, 8, 20])):
        row = record(dice, fields)
        if broken and dice.random() < 0.3:
            row[dice.choice([*row])] = odd(dice)
        kind = dice.random()
        line = mutated_json(row, dice) if broken and kind < 0.25 else dump(row)
        lines.append(odd_line(dice) if broken and kind > 0.95 else line)
        if dice.random() < 0.005:
            lines.append(dump({"text": "a " * 20_000_000}))
    return (dice.choice(["\n", "\n", "\r\n", "\n\n"]).join(lines) + "\n").encode(
        errors="surrogatepass"
    )


def delimited(dice: random.Random, fields: list[str], between: str) -> bytes:
    """Return CSV or TSV with quotes, rows and headers that do not fit."""
    odd_names = ["id", "label", "", "text", "\x1b]0;x\x07", "a" * 3000]
    broken = dice.random() < 0.5
    names = [*fields, *dice.sample(odd_names if broken else ["id", "label", "stars"], 2)]
    rows = [names] if not broken or dice.random() < 0.7 else []
    for _ in range(dice.choice([0, 1, 3, 8])):
        row = [text(dice) for _ in names]
        if broken and dice.random() < 0.2:
            row = row[: dice.randrange(len(row) + 1)] + [str(odd(dice))] * dice.choice([0, 1, 5])
        rows.append(row)

    def quoted(value: str) -> str:
        kind = dice.random()
        if broken and kind < 0.05:
            return f'"{value}'
        bare = broken and kind > 0.6
        return value if bare else '"' + value.replace('"', '""') + '"'

    lines = [between.join(map(quoted, row)) for row in rows]
    return (
        dice.choice(["\n", "\r\n", "\r"] if broken else ["\n", "\r\n"]).join(lines) + "\n"
    ).encode(errors="surrogatepass")


def plain(dice: random.Random, fields: list[str]) -> bytes:
    """Return lines of text."""
    lines = [text(dice) for _ in range(dice.choice([0, 1, 3, 8, 30]))]
    lines += [odd_line(dice)] * (dice.random() < 0.1)
    end = dice.choice(["\n", "\n", "\r\n", "\0", "\n\n"])
    return (end.join(lines) + dice.choice(["", end])).encode(errors="surrogatepass")


TEXT_FORMATS: dict[str, Callable[[random.Random, list[str]], bytes]] = {
    "txt": plain,
    "jsonl": json_lines,
    "ndjson": json_lines,
    "csv": lambda dice, fields: delimited(dice, fields, ","),
    "tsv": lambda dice, fields: delimited(dice, fields, "\t"),
    "parquet": lambda dice, fields: table(dice, fields),
}
FIELDS = {
    "answer": ["question", "context"],
    "choose": ["prompt", "choices"],
    "next-sentence": ["text", "pair"],
}


def packed(name: str, data: bytes, dice: random.Random) -> tuple[str, bytes]:
    """Return a name and bytes, perhaps compressed, perhaps broken after that."""
    kind = dice.random()
    if kind < 0.7:
        return name, data
    if kind < 0.85:
        name, data = f"{name}.gz", gzip.compress(data, 1, mtime=0)
    else:
        name, data = f"{name}.zst", zstandard.compress(data, 1)
    return name, mutated_bytes(data, dice) if dice.random() < 0.3 else data


def file_of(dice: random.Random, case: Path, fields: list[str], form: str = "") -> str:
    """Write a file that can be broken in several ways and return its name."""
    form = form or dice.choice([*TEXT_FORMATS])
    data = TEXT_FORMATS[form](dice, fields)
    if dice.random() < 0.2:
        data = mutated_bytes(data, dice)
    if dice.random() < 0.05 and form != "parquet":
        data = data.decode(errors="replace").encode(dice.choice(["utf-16", "utf-16-le", "utf-32"]))
    suffix = form if dice.random() < 0.95 else dice.choice([*TEXT_FORMATS, "npy", "foo"])
    name, data = packed(f"in.{suffix}", data, dice)
    if dice.random() < 0.004:
        name, data = "in.txt.gz", gzip_bomb()
    (case / name).write_bytes(data)
    return name


def gzip_bomb() -> bytes:
    """Return a small file that is a line of 200 MB."""
    out = io.BytesIO()
    with gzip.open(out, "wb", 1) as file:
        for _ in range(200):
            file.write(b"a " * 500_000)
    return out.getvalue()


def _text(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return one or two commands over a file of texts."""
    others = ["tokenize", "tokenize", "embed", "chunk", "similar", "corpus", "map", "distil"]
    name = dice.choice([*others, *HEADS])
    file = file_of(dice, case, FIELDS.get(name, dice.choice([["text"], ["text", "pair"]])))
    pairs = name in ("tokenize", "embed", "classify", "next-sentence") and dice.random() < 0.15
    source = ["--pairs" if pairs else "-i", file]
    if name == "corpus":
        name = dice.choice(["vocab", "prepare"])
    run = _over(dice, name, source, sound)
    spoil = _spoiling(dice, run.output) if dice.random() < 0.5 else None
    if name == "distil":
        return [run._replace(after=spoil), Command(["embed", "a", "-m", run.output])]
    if not {"--vectors", "--resume"} & {*run.argv}:
        return [run]
    return [run._replace(after=spoil), run]


def _over(dice: random.Random, name: str, source: list[str], sound: Path) -> Command:
    """Return a command over files or stdin, with options of its own."""
    rule = f"over-{name}"
    if name in HEADS:
        rule = "over-task" if name in ("answer", "choose") else "over-free-task"
    values = {"from": source, "file": source[1], "task": name, "model": HEADS.get(name, "")}
    return command(dice, rule, sound=str(sound), **values)


def _stdin(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return a command that reads what is piped in."""
    name = dice.choice(["tokenize", "embed", "decode", "fill-mask", "classify", "tag", "vocab"])
    form = dice.choice(["txt", "jsonl", "csv"])
    data = TEXT_FORMATS[form](dice, ["text"])
    if dice.random() < 0.4:
        data = mutated_bytes(data, dice)
    if name == "decode":
        lines = "\n".join(dump(_ids(dice)) for _ in range(dice.choice([1, 3, 9])))
        ids = lines.encode(errors="surrogatepass")
        run, data = command(dice, "ids", sound=str(sound)), dice.choice([ids, ids, data])
    else:
        told = ["--input-format", form] if dice.random() < 0.7 else []
        run = _over(dice, name, ["-i", "-", *told], sound)
    return [run._replace(stdin=data)]


def _ids(dice: random.Random) -> Any:
    """Return a line that `decode` may be given."""
    ids: list[Any] = [dice.randrange(347) for _ in range(dice.choice([0, 1, 5]))]
    if dice.random() < 0.4:
        ids.insert(0, dice.choice([odd(dice), -1, 347, 10**20, 2.0, "5", True, None, [1]]))
    return dice.choice([ids, {"input_ids": ids}, {"input_ids": ids, "id": odd(dice)}, odd(dice)])


# --- Parquet ------------------------------------------------------------------------------------

ARROW: list[tuple[Any, list[Any]]] = [
    (pyarrow.string(), ["a", None, "\u4e00"]),
    (pyarrow.large_string(), ["a", "b", "c"]),
    (pyarrow.int8(), [1, None, -128]),
    (pyarrow.uint64(), [0, (1 << 64) - 1, 1]),
    (pyarrow.float16(), [np.float16(1), np.float16("nan"), None]),
    (pyarrow.float32(), [1.0, float("nan"), float("inf")]),
    (pyarrow.float64(), [0.1, None, -0.0]),
    (pyarrow.bool_(), [True, None, False]),
    (pyarrow.null(), [None, None, None]),
    (pyarrow.binary(), [b"a", b"\xff", None]),
    (pyarrow.binary(3), [b"abc", b"\xff\xfe\x00", None]),
    (pyarrow.date32(), [0, -800_000, 2_900_000]),
    (pyarrow.date64(), [0, 86_400_000, None]),
    (pyarrow.time32("s"), [0, 86_399, None]),
    (pyarrow.time64("ns"), [0, 1, 86_399_999_999_999]),
    *(
        (pyarrow.timestamp(unit, zone), [0, -(1 << 52), (1 << (52 if unit == "s" else 62))])
        for unit, zone in (("s", None), ("us", "UTC"), ("ns", "Europe/Berlin"), ("ms", "+07:30"))
    ),
    *((pyarrow.duration(unit), [0, -1, 1 << 62]) for unit in ("s", "us", "ns")),
    (pyarrow.decimal128(38, 10), [None, 1, 2]),
    (pyarrow.list_(pyarrow.int64()), [[1], [], None]),
    (pyarrow.list_(pyarrow.timestamp("us")), [[0], [None], None]),
    (pyarrow.list_(pyarrow.float32(), 2), [[1, 2], None, [3, 4]]),
    (pyarrow.list_(pyarrow.string()), [["a", "b"], [None], []]),
    (pyarrow.struct([("x", pyarrow.date32()), ("y", pyarrow.binary())]), [{"x": 1}, None, {}]),
    (pyarrow.map_(pyarrow.string(), pyarrow.int32()), [[("a", 1)], [], None]),
    (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), ["a", "b", "a"]),
]


def column(dice: random.Random, rows: int) -> Any:
    """Return a column of any type of Arrow that can be written to Parquet."""
    kind, values = dice.choice(ARROW)
    return pyarrow.array([values[at % 3] for at in range(rows)], kind)


def table(dice: random.Random, fields: list[str]) -> bytes:
    """Return a Parquet file of texts, with other columns beside them, or instead."""
    rows = dice.choice([0, 1, 3, 3, 10])
    columns: list[tuple[str, Any]] = []
    for name in fields:
        usual = pyarrow.array([text(dice) for _ in range(rows)])
        if name == "choices":
            usual = pyarrow.array([[text(dice)] * 2] * rows, pyarrow.list_(pyarrow.string()))
        columns.append((name, column(dice, rows) if dice.random() < 0.15 else usual))
    others = dice.sample(["id", "label", "stars", "vector", "n_tokens", "\x1b]0;x\x07", "text"], 3)
    columns += [(name, column(dice, rows)) for name in others]
    made = pyarrow.Table.from_arrays([c for _, c in columns], names=[n for n, _ in columns])
    out = io.BytesIO()
    pyarrow.parquet.write_table(made, out, row_group_size=dice.choice([1, 2, 100]))
    return out.getvalue()


# --- vectors and ids ----------------------------------------------------------------------------


def vectors(dice: random.Random, case: Path, stem: str) -> str:
    """Write a file of vectors or ids that may be broken, and return its name."""
    form = dice.choice(["npy", "npy", "npz", "safetensors", "jsonl", "csv", "parquet"])
    array = odd_array(dice)
    if dice.random() < 0.5:
        array = np.random.default_rng(dice.randrange(99)).normal(size=(3, 4)).astype("f4")
    try:
        data = VECTOR_FORMATS[form](array, dice)
    except (ValueError, TypeError, LookupError, pyarrow.ArrowException, SafetensorError):
        form, data = "npy", npy(array)  # a type or a shape that this format does not have
    if dice.random() < 0.35:
        how = mutated_safetensors if form == "safetensors" else mutated_npy
        data = how(data, dice) if form in ("npy", "safetensors") else mutated_bytes(data, dice)
    if dice.random() < 0.15:
        data = mutated_bytes(data, dice, head=200)
    name = f"{stem}.{form}"
    if dice.random() < 0.3:
        name, data = packed(name, data, dice)
    (case / name).write_bytes(data)
    if dice.random() < 0.2:
        manifest = {"rows": 3, "shape": [3, 4], "precision": "float32", "fingerprint": {"model": 1}}
        beside = mutated_json(manifest, dice).encode(errors="surrogatepass")
        (case / f"{name}.manifest.json").write_bytes(beside)
    return name


def _npz(array: np.ndarray, dice: random.Random) -> bytes:
    if dice.random() < 0.03:
        return bomb()
    out = io.BytesIO()
    names = dice.choice([["embeddings"], ["input_ids"], ["embeddings", "ids"], ["x"], []])
    with zipfile.ZipFile(out, "w", dice.choice([0, 8])) as archive:
        for name in names:
            body = npy(array)
            body = mutated_npy(body, dice) if dice.random() < 0.2 else body
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), body)
    return out.getvalue()


def _safetensors(array: np.ndarray, dice: random.Random) -> bytes:
    name = dice.choice(["embeddings", "embeddings", "input_ids", "x", "\x1b]0;x\x07"])
    return safetensors_of({name: np.ascontiguousarray(array)})


def _json_vectors(array: np.ndarray, dice: random.Random) -> bytes:
    name = dice.choice(["vector", "vector", "input_ids", "embedding"])
    lines = []
    for at, row in enumerate(array.tolist()):
        value = {"id": at, name: row}
        if dice.random() < 0.15:
            lines.append(mutated_json(value, dice))
        elif dice.random() < 0.1:
            lines.append(dump({"id": at, name: [Raw("1" * 400), odd(dice)]}))
        else:
            lines.append(json.dumps(value, default=str))
    return "\n".join(lines).encode(errors="surrogatepass")


def _csv_vectors(array: np.ndarray, dice: random.Random) -> bytes:
    lines = ["id," + ",".join(map(str, range(array.shape[-1])))]
    lines += [f"{at}," + ",".join(map(str, row)) for at, row in enumerate(array.tolist())]
    return "\n".join(lines).encode(errors="replace")


def _parquet_vectors(array: np.ndarray, dice: random.Random) -> bytes:
    name = dice.choice(["vector", "vector", "input_ids", "x"])
    made = pyarrow.array(list(array)) if dice.random() < 0.8 else column(dice, 3)
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays([made], names=[name]), out)
    return out.getvalue()


VECTOR_FORMATS: dict[str, Callable[[np.ndarray, random.Random], bytes]] = {
    "npy": lambda array, dice: npy(array),
    "npz": _npz,
    "safetensors": _safetensors,
    "jsonl": _json_vectors,
    "csv": _csv_vectors,
    "parquet": _parquet_vectors,
}


def _vectors(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return commands over files of vectors or ids."""
    one = vectors(dice, case, "one")
    other = vectors(dice, case, "other") if dice.random() < 0.5 else one
    (case / "c.txt").write_text("a\nb\nc\n")
    return [command(dice, "of-vectors", one=one, other=other, sound=str(sound))]


# --- files of a run that is resumed -------------------------------------------------------------


def _resume(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return a run that stops half-way or is whole, then others over what it left, mutated."""
    rows = dice.random() < 0.5
    first = command(dice, "resumed-rows" if rows else "resumed", sound=str(sound))
    out = first.output
    lines = [dump({"text": text(dice), "id": f"r{at}", "input_ids": [at]}) for at in range(7)]
    halfway = dice.random() < 0.6
    good = "\n".join(lines).encode() + b"\n"
    (case / "in.jsonl").write_bytes(good + (b"{broken\n" if halfway else b""))
    spoil = _spoiling(dice, out)

    def change(place: Path) -> None:
        if halfway and dice.random() < 0.8:
            (place / "in.jsonl").write_bytes(good)
        elif dice.random() < 0.3:  # as --update takes it
            changed = [*dice.sample(lines, 4), dump({"text": text(dice), "id": "new"})]
            (place / "in.jsonl").write_text("\n".join(changed) + "\n", "utf-8", "surrogatepass")
        spoil(place)

    again = [word for word in first.argv if word != "--resume"]
    return [
        first._replace(after=change),
        Command([*again, *command(dice, "again-rows" if rows else "again").argv]),
        command(dice, "further" if rows else "looked-at", out=out, sound=str(sound)),
    ]


def _chain(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return a command whose output, perhaps spoiled, is the input of others."""
    lines = [dump(record(dice, ["text"])) for _ in range(dice.choice([0, 1, 5]))]
    (case / "in.jsonl").write_bytes("".join(f"{line}\n" for line in lines).encode())
    form = dice.choice(["jsonl", "csv", "tsv", "npy", "npz", "safetensors", "parquet"])
    packs = ["", "", ".gz", ".zst"] if form in ("jsonl", "csv", "tsv") else [""]
    names = {"out": f"out.{form}{dice.choice(packs)}", "sound": str(sound)}
    ids = dice.random() < 0.5 or form == "tsv"
    first = command(dice, "made-ids" if ids else "made-vectors", **names)
    spoil = _spoiling(dice, names["out"]) if dice.random() < 0.5 else None
    rule = "further" if ids else dice.choice(["further", "further", "nearest"])
    return [first._replace(after=spoil), command(dice, rule, **names)]


def _spoiling(dice: random.Random, out: str) -> Callable[[Path], None]:
    """Return what breaks one or two of the files that a run left, the output among them."""

    def spoil(place: Path) -> None:
        names = [str(path.relative_to(place)) for path in place.rglob("*") if ordinary(path)]
        left = sorted(name for name in names if name.startswith(out))
        for name in dice.sample(left, min(len(left), dice.choice([1, 1, 2]))):
            path = place / name
            data = path.read_bytes()
            if path.suffix == ".json" and dice.random() < 0.7:
                data = mutated_json(json.loads(data), dice).encode(errors="surrogatepass")
            elif dice.random() < 0.8:
                data = mutated_bytes(data, dice)
            else:
                path.unlink()
                links = [path.name, "in.jsonl"]
                if name.removeprefix(out) not in ("", ".index.jsonl"):  # those may be inputs
                    links += ["a pipe", "/dev/full"]
                match dice.choice(["a folder", "nothing", *links]):
                    case "a folder":
                        path.mkdir()
                    case "a pipe":
                        os.mkfifo(path)
                    case "nothing":
                        pass
                    case link:
                        path.symlink_to(link)
                continue
            path.write_bytes(data)

    return spoil
