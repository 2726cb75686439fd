"""Labelled examples in which something is wrong, and the commands that learn from them and judge.

Also the commands that compare texts with each other.
"""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

from .folders import HEADS, Command, mutate
from .inputs import file_of, packed, text
from .values import mutated_bytes, mutated_json, odd, typed

LABELS = ["good", "bad", "\u4e2d", "a b", "good "]
TASKS = ("classify", "multilabel", "regress", "tag", "answer", "pairs", "cosent")
JUDGED = {"classify": "classify", "tag": "tag", "answer": "answer", "regress": "classify"}


def build(seed: int, sound: Path, case: Path) -> list[Command]:
    """Make the inputs of a case, in ``case``, and return what is run over them."""
    dice = random.Random(f"learning {seed}")
    kind = dice.random()
    if kind < 0.45:
        return _train(dice, sound, case)
    if kind < 0.65:
        return [_evaluate(dice, sound, case)]
    if kind < 0.8:
        return [_search(dice, sound, case)]
    return [_compare(dice, sound, case)]


# --- examples -----------------------------------------------------------------------------------


def example(dice: random.Random, task: str) -> dict[str, Any]:
    """Return an example of a task."""
    one: dict[str, Any] = {"text": text(dice)}
    match task:
        case "classify":
            one["label"] = dice.choice(LABELS[:2] if dice.random() < 0.8 else [*LABELS, 1, True])
        case "multilabel":
            one["labels"] = dice.sample(LABELS, dice.choice([0, 1, 2]))
        case "regress":
            one["score"] = dice.choice([0, 1, 0.5, -3, 1e30, dice.random()])
        case "tag":
            words = text(dice).split()
            tags = [dice.choice(["O", "B-PER", "I-PER", "B-LOC", "X"]) for _ in words]
            return {"words": words, "tags": tags}
        case "answer":
            words = text(dice).split() or ["x"]
            context, answer = " ".join(words), dice.choice(words)
            return {
                "question": text(dice),
                "context": context,
                "answer": answer,
                "start": context.find(answer),
            }
        case "pairs":
            found = {"anchor": text(dice), "positive": text(dice)}
            return found | ({"negative": text(dice)} if dice.random() < 0.2 else {})
        case _:
            one |= {"pair": text(dice), "score": dice.random()}
    if dice.random() < 0.1:
        one["pair"] = text(dice)
    return one


def examples(dice: random.Random, case: Path, task: str, name: str) -> str:
    """Write a file of examples, some of them broken in a third of the files; return its name."""
    lines, broken = [], dice.random() < 0.3
    for _ in range(dice.choice([0, 1, 4]) if broken else dice.choice([12, 30])):
        one = example(dice, task)
        if broken and dice.random() < 0.3:
            for key in dice.sample([*one], 1):
                one[key] = dice.choice([odd(dice), None, "", [], {}, float("nan")])
        if broken and dice.random() < 0.1:
            one.pop(dice.choice([*one]))
        lines.append(mutated_json(one, dice) if broken and dice.random() < 0.1 else json.dumps(one))
    data = ("\n".join(lines) + "\n").encode(errors="surrogatepass")
    if task == "tag" and dice.random() < 0.3:
        data, name = conll(dice), name.replace(".jsonl", dice.choice([".conll", ".bio"]))
    if broken and dice.random() < 0.3:
        data = mutated_bytes(data, dice)
    name, data = packed(name, data, dice) if dice.random() < 0.1 else (name, data)
    (case / name).write_bytes(data)
    return name


def conll(dice: random.Random) -> bytes:
    """Return lines of a word and its tag, with sentences between empty lines."""
    lines = []
    for _ in range(dice.choice([0, 5, 30])):
        word, tag = dice.choice([*text(dice).split(), "x"]), dice.choice(["O", "B-A", "I-A"])
        usual = dice.random() < 0.9
        lines.append(f"{word} {tag}" if usual else dice.choice(["", "-DOCSTART- O", word, "\t"]))
    return ("\n".join(lines) + "\n\n").encode(errors="surrogatepass")


# --- commands -----------------------------------------------------------------------------------


def _train(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    task = dice.choice(TASKS)
    file = examples(dice, case, task, "in.jsonl")
    argv = ["train", file, "-m", str(sound / "tiny"), "-q", "-o", "out", "--max-length", "16"]
    argv += typed(dice, "", "--frozen", "--full", "--layers 1")
    argv += typed(dice, "", "", "--eval-fraction 0", "--eval-fraction 0.9")
    argv += typed(dice, "", "", "--on-error skip", "--patience 1", "--batch-size 1")
    if dice.random() < 0.4:  # some of these do not go together, or not with the task
        argv += typed(dice, "--class-weights balanced", "--label-smoothing 0.1")
        argv += dice.choice([[], ["--task", dice.choice(TASKS[:5])], ["--layers", "9"]])
        argv += typed(dice, "", "--extra label=label_ids", "--extra score")
    if dice.random() < 0.2:
        held = task if dice.random() < 0.8 else dice.choice(TASKS)
        argv += ["--eval", examples(dice, case, held, "held.jsonl")]
    steps, after = ["--steps", "2", "--save-every", "1"], None
    if dice.random() < 0.3:
        after = partial(_spoil, dice=dice)
    commands = [Command([*argv, *steps], output="out", after=after)]
    if dice.random() < 0.5:
        commands.append(Command([*argv, *steps, "--resume"], output="out"))
    if dice.random() < 0.5:
        commands.append(Command(["evaluate", file, "-m", "out", "-q"]))
    return commands


def _spoil(place: Path, dice: random.Random) -> None:
    if (place / "out").is_dir():
        mutate(place / "out", dice)


def _evaluate(dice: random.Random, sound: Path, case: Path) -> Command:
    task = dice.choice(TASKS)
    file = examples(dice, case, task, "in.jsonl")
    head = HEADS.get(JUDGED.get(task, ""), "tiny")
    model = head if dice.random() < 0.8 else dice.choice([*HEADS.values()])
    argv = ["evaluate", file, "-m", str(sound / model)]
    argv += dice.choice([[], [], ["--on-error", "skip"], ["--task", dice.choice(TASKS[:5])]])
    argv += dice.choice([[], [], ["--compare", str(sound / model)], ["--json"], ["-f", "table"]])
    out = dice.choice(["", "", "out.jsonl"])
    return Command([*argv, *(["-o", out] if out else [])], output=out)


def _search(dice: random.Random, sound: Path, case: Path) -> Command:
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
    argv = ["evaluate", "--queries", "queries.jsonl", "--corpus", "corpus.jsonl"]
    return Command([*argv, "--qrels", "test.tsv", "-m", str(sound / "tiny")])


def _compare(dice: random.Random, sound: Path, case: Path) -> Command:
    """Return a command that compares the texts of a file with each other, or with a query."""
    file = file_of(dice, case, ["text"])
    if dice.random() < 0.4:
        model = dice.choice([HEADS["next-sentence"], HEADS["classify"], "tiny"])
        return Command(["rerank", "a film", "-i", file, "-m", str(sound / model)])
    argv = ["duplicates", file, "-m", str(sound / "tiny")]
    argv += typed(dice, "", "--threshold 0.5", "--keep longest")
    out = dice.choice(["", "out.jsonl", "out.txt", "out.csv"])
    return Command([*argv, *(["-o", out] if out else [])], output=out)
