"""Shared by the tests of pretraining: a small folder of training instances, and runs over it."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
from front import (
    put_json,
    rows_in,
)

from bertcli.training.prepare import row_type

TOKENIZER = Path(__file__).parents[2] / "samples" / "tiny-bert"
VOCABULARY, CLS, SEP, MASK = 347, 101, 102, 103
LENGTH, PREDICTIONS = 24, 4
CONFIG = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def arrays(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Return pairs with a rule: word ids increase by one, also in the second text if it follows."""
    draw = np.random.default_rng(seed)
    found = {
        "input_ids": np.zeros((rows, LENGTH), np.int32),
        "token_type_ids": np.zeros((rows, LENGTH), np.uint8),
        "lengths": draw.integers(9, LENGTH + 1, rows).astype(np.int32),
        "masked_lm_positions": np.zeros((rows, PREDICTIONS), np.int32),
        "masked_lm_ids": np.zeros((rows, PREDICTIONS), np.int32),
        "masked_lm_counts": draw.integers(1, PREDICTIONS + 1, rows).astype(np.int32),
        "next_sentence_labels": draw.integers(0, 2, rows).astype(np.uint8),
    }
    for row in range(rows):
        length, count = found["lengths"][row], found["masked_lm_counts"][row]
        first, second = (length - 3) // 2, length - 3 - (length - 3) // 2
        start, jump = draw.integers(110, 200), 100 * found["next_sentence_labels"][row]
        words = start + np.arange(first + second)
        words[first:] += jump
        ids = [CLS, *words[:first], SEP, *words[first:], SEP]
        at = np.sort(draw.choice([i for i, one in enumerate(ids) if one > SEP], count, False))
        found["masked_lm_positions"][row, :count] = at
        found["masked_lm_ids"][row, :count] = np.array(ids)[at]
        found["input_ids"][row, :length] = ids
        found["input_ids"][row, at] = MASK
        found["token_type_ids"][row, first + 2 : length] = 1
    return found


def prepared(folder: Path, rows: int = 200, seed: int = 0, **changes) -> Path:
    """Write a folder like `pretrain prepare`."""
    folder.mkdir(parents=True)
    columns = arrays(rows, seed)
    table = np.zeros(rows, row_type(LENGTH, PREDICTIONS))
    for name, column in columns.items():
        table[name] = column
    table.tofile(folder / "instances.bin")
    names = ["instances.bin", "vocab.txt", "tokenizer_config.json"]
    for name in names[1:]:
        shutil.copy(TOKENIZER / name, folder / name)
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    index = {
        "format": "bertcli-pretrain",
        "version": 3,
        "max_length": LENGTH,
        "max_predictions": PREDICTIONS,
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "extra_embeddings": {},
        "extra_fields": {},
        "statistics": {"instances": rows},
        "sha256": hashes,
    }
    put_json(folder / "instances.json", {**index, **changes})
    return folder


def config_file(path: Path, **changes) -> Path:
    put_json(path, {**CONFIG, **changes})
    return path


def lines(folder: Path) -> list[dict]:
    """Return the log of a run without timings."""
    found = rows_in(folder / "log.jsonl")
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in found]
