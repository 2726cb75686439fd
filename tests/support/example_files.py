"""Generated examples, whose rule is simple enough for a tiny model to learn in seconds."""

import random
from pathlib import Path

from front import jsonl

GOOD, BAD = ("good", "great", "fine", "lovely"), ("bad", "awful", "poor", "nasty")
FILLER = "the film was a very long one with many people and some music".split()  # noqa: SIM905
LABELS = {"good": GOOD, "bad": BAD}


def sentence(draw: random.Random, *words: str) -> str:
    found = [*draw.choices(FILLER, k=draw.randint(1, 5)), *words]
    draw.shuffle(found)
    return " ".join(found)


def reviews(count: int = 60, seed: int = 0) -> list[dict]:
    """Return texts with one class each, which is the class of their only non-filler word."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        label = draw.choice([*LABELS])
        found.append({"text": sentence(draw, draw.choice(LABELS[label])), "label": label})
    return found


def several(count: int = 60, seed: int = 0) -> list[dict]:
    """Return texts with any of two labels, or none."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        labels = [label for label in LABELS if draw.random() < 0.5]
        words = [draw.choice(LABELS[label]) for label in labels]
        found.append({"text": sentence(draw, *words), "labels": labels})
    return found


def scored(count: int = 60, seed: int = 0) -> list[dict]:
    """Return pairs with a score: 1 if both texts have a word of the same class, else 0."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        one, other = draw.choice([*LABELS]), draw.choice([*LABELS])
        texts = [sentence(draw, draw.choice(LABELS[label])) for label in (one, other)]
        found.append({"text": texts[0], "pair": texts[1], "score": float(one == other)})
    return found


def tagged(count: int = 60, seed: int = 0) -> list[dict]:
    """Return words with tags: words of a class are entities; rare ones have several tokens."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words = sentence(draw, *draw.choices([*GOOD, *BAD, "Ouagadougou"], k=2)).split()
        kinds = {word: kind for kind, some in LABELS.items() for word in some}
        kinds["Ouagadougou"] = "LOC"
        tags = [f"B-{kinds[word]}" if word in kinds else "O" for word in words]
        found.append({"words": words, "tags": tags})
    return found


def asked(count: int = 60, seed: int = 0) -> list[dict]:
    """Return questions whose answer is the only word of the context with a class."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        word = draw.choice([*GOOD, *BAD])
        context = sentence(draw, word)
        row = {"question": "how was it", "context": context, "answer": word}
        found.append(row | {"start": f" {context} ".index(f" {word} ")})
    return found


def belonging(count: int = 60, seed: int = 0, negatives: bool = False) -> list[dict]:
    """Return positive pairs: both texts contain the same number word."""
    draw, found = random.Random(seed), []
    numbers = "one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
    for _ in range(count):
        own, other = draw.sample(numbers, 2)
        pair = {"anchor": f"room {own}", "positive": f"the key of {own} please"}
        found.append({**pair, "negative": f"the key of {other} please"} if negatives else pair)
    return found


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text(jsonl(rows), "utf-8")
    return path
