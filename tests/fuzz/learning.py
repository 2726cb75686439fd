"""Labelled examples in which something is wrong, and the commands that learn from them and judge.

Also the commands that compare texts with each other.
"""

import json
import random
from pathlib import Path
from typing import Any

from .folders import HEADS, mutate
from .grammar import Command, command
from .inputs import file_of, packed, text
from .values import mutated_bytes, mutated_json, odd

LABELS = ["good", "bad", "\u4e2d", "a b", "good "]
TASKS = ("classify", "multilabel", "regress", "tag", "answer", "pairs", "cosent")
JUDGED = {"regress": "classify"}  # by the head of another task


def build(seed: int, sound: Path, case: Path) -> list[Command]:
    """Make the inputs of a case, in ``case``, and return what is run over them."""
    dice = random.Random(f"learning {seed}")
    (make,) = dice.choices([_train, _evaluate, _search, _compare], [9, 4, 3, 4])
    return make(dice, sound, case)


# --- examples -----------------------------------------------------------------------------------


def example(dice: random.Random, task: str) -> dict[str, Any]:
    """Return an example of a task."""
    words = text(dice).split() or ["x"]
    pair = {"pair": text(dice)} if task == "cosent" or dice.random() < 0.1 else {}
    row = {"text": text(dice), **pair}
    match task:
        case "classify":
            usual = dice.random() < 0.8
            return {**row, "label": dice.choice(LABELS[:2] if usual else [*LABELS, 1, True])}
        case "multilabel":
            return {**row, "labels": dice.sample(LABELS, dice.choice([0, 1, 2]))}
        case "tag":
            tags = ["O", "B-PER", "I-PER", "B-LOC", "X"]
            return {"words": words, "tags": dice.choices(tags, k=len(words))}
        case "answer":
            context, answer = " ".join(words), dice.choice(words)
            start = context.find(answer)
            return {"question": text(dice), "context": context, "answer": answer, "start": start}
        case "pairs":
            negative = {"negative": text(dice)} if dice.random() < 0.2 else {}
            return {"anchor": text(dice), "positive": text(dice), **negative}
    return {**row, "score": dice.choice([0, 1, 0.5, -3, 1e30, dice.random()])}


def examples(dice: random.Random, case: Path, task: str, name: str) -> str:
    """Write a file of examples, some of them broken in a third of the files; return its name."""
    lines, broken = [], dice.random() < 0.3
    for _ in range(dice.choice([0, 1, 4]) if broken else dice.choice([12, 30])):
        row = example(dice, task)
        if broken and dice.random() < 0.3:
            row[dice.choice([*row])] = dice.choice([odd(dice), None, "", [], {}, float("nan")])
        if broken and dice.random() < 0.1:
            row.pop(dice.choice([*row]))
        lines.append(mutated_json(row, dice) if broken and dice.random() < 0.1 else json.dumps(row))
    if task == "tag" and dice.random() < 0.3:
        lines, name = [*conll(dice), ""], name.replace("jsonl", dice.choice(["conll", "bio"]))
    data = ("\n".join(lines) + "\n").encode(errors="surrogatepass")
    if broken and dice.random() < 0.3:
        data = mutated_bytes(data, dice)
    name, data = packed(name, data, dice) if dice.random() < 0.1 else (name, data)
    (case / name).write_bytes(data)
    return name


def conll(dice: random.Random) -> list[str]:
    """Return lines of a word and its tag, with sentences between empty lines."""
    lines = []
    for _ in range(dice.choice([0, 5, 30])):
        word, tag = dice.choice([*text(dice).split(), "x"]), dice.choice(["O", "B-A", "I-A"])
        strange = ["", "-DOCSTART- O", word, "\t"]
        lines.append(f"{word} {tag}" if dice.random() < 0.9 else dice.choice(strange))
    return lines


# --- commands -----------------------------------------------------------------------------------


def _train(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    task = dice.choice(TASKS)
    file = examples(dice, case, task, "in.jsonl")
    first = command(dice, "train", file=file, sound=str(sound))
    if dice.random() < 0.2:
        other = task if dice.random() < 0.8 else dice.choice(TASKS)
        first.argv.extend(["--eval", examples(dice, case, other, "held.jsonl")])
    spoiled = dice.random() < 0.3

    def spoil(place: Path) -> None:
        if spoiled and (place / "out").is_dir():
            mutate(place / "out", dice)

    commands = [first._replace(after=spoil)]
    if dice.random() < 0.5:
        commands.append(Command([*first.argv, "--resume"]))
    if dice.random() < 0.5:
        commands.append(Command(["evaluate", file, "-m", "out", "-q"]))
    return commands


def _evaluate(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    task = dice.choice(TASKS)
    file = examples(dice, case, task, "in.jsonl")
    model = HEADS.get(JUDGED.get(task, task), "tiny")
    model = model if dice.random() < 0.8 else dice.choice([*HEADS.values()])
    return [command(dice, "evaluate", file=file, sound=str(sound), model=model)]


def _search(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return an evaluation of a search, in which a file may be broken."""
    names = [f"d{at}" for at in range(dice.choice([0, 5, 9]))]
    texts = [json.dumps({"_id": name, "text": text(dice)}) for name in names]
    queries = [json.dumps({"_id": f"q{at}", "text": text(dice)}) for at in range(3)]
    pairs = [(f"q{dice.randrange(3)}", dice.choice(names or ["d9"])) for _ in range(4)]
    judged = [f"{query}\t{name}\t{dice.choice([0, 1, 2, -1])}" for query, name in pairs]
    if dice.random() < 0.3:
        judged = [f"{query} 0 {name} 1" for query, name in pairs]
    head = dice.choice([["query-id\tcorpus-id\tscore"], []])
    files = {"corpus.jsonl": texts, "queries.jsonl": queries, "test.tsv": [*head, *judged]}
    for name, lines in files.items():
        data = ("\n".join(lines) + "\n").encode(errors="surrogatepass")
        (case / name).write_bytes(mutated_bytes(data, dice) if dice.random() < 0.1 else data)
    return [command(dice, "search", sound=str(sound))]


def _compare(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return a command that compares the texts of a file with each other, or with a query."""
    return [command(dice, "compare", file=file_of(dice, case, ["text"]), sound=str(sound))]
