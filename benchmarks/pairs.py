"""Whether `bertcli train` on pairs raises a held-out score, on news that are at hand.

    python benchmarks/pairs.py train.jsonl test.jsonl [--base-layers 2] [--texts 1500] [--threads 2]

Both files are JSONL with `text` and `label`. A text is divided after its first 8 words, about its
headline: `contrast` trains on beginnings and what follows them, judged as a search for what follows
each beginning among all of the test part; `scores` trains on pairs that are of one text (1), of one
class (0.5) or of two (0), judged by Spearman's correlation. The model to begin with is the first
layers of a trained one, which have room to improve. Each is compared with `evaluate --compare`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.model_folder.load import load, save
from bertcli.models.bert import BertModel

WORDS = 8  # of a beginning

Row = dict[str, Any]
News = list[tuple[str, str, str]]  # beginning, rest, class


def first_layers(name: str, count: int, folder: Path) -> Path:
    """Write a model of the first layers of another, with the same pooling."""
    source = find_model(name, files=MODEL_FILES).path
    shutil.copytree(source, folder, dirs_exist_ok=True)
    model, _ = load(source, BertModel, pooler=False)
    config = replace(model.config, num_hidden_layers=count)
    short = BertModel(config, False)
    kept = short.state_dict().keys()
    short.load_state_dict({k: v for k, v in model.state_dict().items() if k in kept})
    for path in folder.glob("*.safetensors"):
        path.unlink()
    save(short, config, folder)
    return folder


def news(path: Path) -> News:
    """Return the beginning, the rest and the class of each text that is long enough."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        words = row["text"].split()
        if len(words) >= 2 * WORDS:
            found.append((" ".join(words[:WORDS]), " ".join(words[WORDS:]), row["label"]))
    return found


def scored(texts: News, seed: int) -> list[Row]:
    """Return three pairs a text: with its own rest, one of its class, and one of another."""
    draw, rows = random.Random(seed), []
    for start, rest, label in texts:
        same = draw.choice([one for one in texts if one[2] == label and one[1] != rest])
        other = draw.choice([one for one in texts if one[2] != label])
        for score, pair in ((1.0, rest), (0.5, same[1]), (0.0, other[1])):
            rows.append({"text": start, "pair": pair, "score": score})
    return rows


def written(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def files(train: News, test: News, work: Path, texts: int) -> None:
    written(work / "contrast.jsonl", [{"anchor": a, "positive": b} for a, b, _ in train])
    written(work / "scores.jsonl", scored(train[:texts], 0))
    written(work / "scores-test.jsonl", scored(test, 1))
    written(
        work / "queries.jsonl", [{"_id": f"q{n}", "text": a} for n, (a, _, _) in enumerate(test)]
    )
    written(
        work / "corpus.jsonl", [{"_id": f"d{n}", "text": b} for n, (_, b, _) in enumerate(test)]
    )
    (work / "qrels.tsv").write_text("".join(f"q{n}\td{n}\t1\n" for n in range(len(test))))


def bertcli(*argv: Any) -> str:
    command = [sys.executable, "-m", "bertcli", *map(str, argv)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def shown(what: str, metric: str, report: str) -> None:
    found = json.loads(report)
    (before, trained), other = (found[metric], found["compare"][metric]), found["compare"]
    low, high = other["intervals"][metric]
    print(f"{what}: {metric} {before:.3f} -> {trained:.3f}, difference", end=" ")
    print(f"{other['differences'][metric]:.3f} ({low:.3f} to {high:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--base-layers", type=int, default=2)
    parser.add_argument("--texts", type=int, default=1500, help="to make pairs with scores of")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("pairs-benchmark"))
    parser.add_argument("--epochs", default=1)
    given = parser.parse_args()
    work = given.work
    work.mkdir(parents=True, exist_ok=True)
    base = first_layers(given.model, given.base_layers, work / "base")
    files(news(given.train), news(given.test), work, given.texts)
    fixed = ("-m", base, "--epochs", given.epochs, "--batch-size", 64, "--max-length", 64)
    fixed += ("--layers", 0, "--learning-rate", 1e-4, "--threads", given.threads)
    search = ("--queries", work / "queries.jsonl", "--corpus", work / "corpus.jsonl")
    bertcli("train", work / "contrast.jsonl", "-o", work / "near", "--overwrite", *fixed)
    pair = ("-m", base, "--compare", work / "near", "--json")
    report = bertcli("evaluate", *search, "--qrels", work / "qrels.tsv", *pair)
    shown("anchor and positive", "ndcg@10", report)
    embed = ("--task", "embed")
    bertcli("train", work / "scores.jsonl", "-o", work / "like", "--overwrite", *embed, *fixed)
    pair = ("-m", base, "--compare", work / "like", "--json")
    shown("scores", "spearman", bertcli("evaluate", work / "scores-test.jsonl", *embed, *pair))


if __name__ == "__main__":
    main()
