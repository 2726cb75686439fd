"""Times `bertcli pretrain run`'s steps against transformers' Trainer: same model, data, threads.

    python benchmarks/pretraining.py [DIR] [--config mini] [--steps 6] [--repeats 5] [--threads 2]

DIR is a folder of `bertcli pretrain prepare`; without it there are random instances of 128 tokens,
nine of ten of full length. Both sides train a BertForPreTraining of the same shape with AdamW,
clipping and dropout, batch by batch in turn (ours, theirs, ours, ...), in one process. Read the
ratio of the medians, not the tokens a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import transformers

from bertcli.engines.torch_engine import devices
from bertcli.models.heads import BertForPreTraining
from bertcli.models.initial_weights import initialise
from bertcli.training.loop import Ranks, Training
from bertcli.training.options import PretrainingJob, TrainingOptions
from bertcli.training.prepare import FORMAT, INDEX, ROWS_FILE, VERSION, row_type
from bertcli.training.pretraining import Instances, PretrainingObjective, training_config

LENGTH, PREDICTIONS, VOCABULARY, COUNT = 128, 20, 30522, 4096
WARM = 2  # steps before the clock starts


def random_instances(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    rows = np.zeros(COUNT, row_type(LENGTH, PREDICTIONS))
    rows["lengths"] = LENGTH
    rows["lengths"][::10] = draw.integers(16, LENGTH, len(rows[::10]))
    kept = np.arange(LENGTH) < rows["lengths"][:, None]
    rows["input_ids"] = draw.integers(1000, VOCABULARY, (COUNT, LENGTH)) * kept
    rows["token_type_ids"] = (np.arange(LENGTH) > 60) & kept
    rows["masked_lm_counts"] = np.maximum(rows["lengths"] * 15 // 100, 1).clip(max=PREDICTIONS)
    rows["masked_lm_positions"] = 1 + np.arange(PREDICTIONS) * 6
    rows["masked_lm_ids"] = draw.integers(1000, VOCABULARY, (COUNT, PREDICTIONS))
    rows["next_sentence_labels"] = draw.integers(0, 2, COUNT)
    rows.tofile(folder / ROWS_FILE)
    sizes = {"max_length": LENGTH, "max_predictions": PREDICTIONS, "vocab_size": VOCABULARY}
    index = {"format": FORMAT, "version": VERSION, **sizes, "pad_token_id": 0}
    index |= {"extra_embeddings": {}, "extra_fields": {}, "statistics": {"instances": COUNT}}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


class Ours:
    def __init__(self, data, config, options, device):
        model = BertForPreTraining(config)
        initialise(model, config.initializer_range)  # or denormal numbers slow the decoder down
        model = model.to(device)
        objective = PretrainingObjective(data)
        self.training = Training(model, objective, np.arange(len(data)), options, Ranks(device))
        self.number = 0

    def run(self, steps: int) -> float:
        """Return the tokens a second of some steps."""
        tokens, began = 0, 0.0
        for step in range(-WARM, steps):
            if step == 0:
                tokens, began = 0, time.perf_counter()
            tokens += self.training.step(self.number)["tokens"]
            self.number += 1
        return tokens / (time.perf_counter() - began)


class Clock(transformers.TrainerCallback):
    def on_train_begin(self, args, state, control, **more):
        self.ends = []

    def on_step_end(self, args, state, control, **more):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


class Theirs:
    def __init__(self, data, config, options, device):
        made = transformers.BertConfig(**config.to_dict())
        self.model = transformers.BertForPreTraining(made)
        found = data.rows[:COUNT]
        self.rows = [{name: row[name] for name in found.dtype.names} for row in found]
        self.options, self.device, self.seed = options, device, 0

    def run(self, steps: int) -> float:
        """Return the tokens a second of some steps."""
        self.seed += 1
        seen, clock = [], Clock()

        def collate(rows):
            seen.append(sum(int(row["lengths"]) for row in rows))
            return padded(rows)

        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder,
                per_device_train_batch_size=self.options.batch_size,
                max_steps=steps + WARM,
                learning_rate=self.options.learning_rate,
                weight_decay=self.options.weight_decay,
                seed=self.seed,
                use_cpu=self.device.type == "cpu",
                bf16=self.options.dtype == "bfloat16",
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                remove_unused_columns=False,
                dataloader_pin_memory=self.device.type != "cpu",
            )
            trainer = transformers.Trainer(
                self.model, arguments, collate, self.rows, callbacks=[clock]
            )
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        taken = clock.ends[-1] - clock.ends[WARM - 1]
        return sum(seen[WARM : WARM + steps]) / taken


def padded(rows):
    """A batch as wide as its longest row, with the labels that transformers takes."""
    lengths = np.array([row["lengths"] for row in rows])
    width = int(lengths.max())
    ids = torch.tensor(np.stack([row["input_ids"][:width] for row in rows]), dtype=torch.long)
    types = torch.tensor(np.stack([row["token_type_ids"][:width] for row in rows]))
    labels = torch.full_like(ids, -100)
    for number, row in enumerate(rows):
        at = row["masked_lm_positions"][: row["masked_lm_counts"]]
        labels[number, at] = torch.from_numpy(row["masked_lm_ids"][: len(at)].astype(np.int64))
    return {
        "input_ids": ids,
        "attention_mask": torch.from_numpy(np.arange(width) < lengths[:, None]).long(),
        "token_type_ids": types.long(),
        "labels": labels,
        "next_sentence_label": torch.tensor([int(row["next_sentence_labels"]) for row in rows]),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--config", default="mini")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        data = Instances(asked.data or random_instances(Path(folder)))
        config = training_config(PretrainingJob(data.folder, config=asked.config), data, data)
        options = TrainingOptions(
            steps=10**6, batch_size=asked.batch_size, dtype=asked.dtype
        ).with_steps(1)
        (device,) = devices(asked.device)
        sides = [side(data, config, options, device) for side in (Ours, Theirs)]
        rates: list[list[float]] = [[], []]
        for _ in range(asked.repeats):
            for side, found in zip(sides, rates, strict=True):
                found.append(side.run(asked.steps))
    ours, theirs = map(statistics.median, rates)
    ratios = sorted(one / other for one, other in zip(*rates, strict=True))
    print(f"bertcli       {ours:10,.0f} tokens/s")
    print(f"transformers  {theirs:10,.0f} tokens/s")
    print(f"ratio         {ours / theirs:10.2f}  (pairs: {', '.join(f'{r:.2f}' for r in ratios)})")
    if asked.json:
        said = {"ours": rates[0], "theirs": rates[1], "ratio": ours / theirs}
        said |= {"options": asdict(options), "config": config.to_dict(), "device": str(device)}
        asked.json.write_text(json.dumps(said, indent=2) + "\n")


if __name__ == "__main__":
    main()
