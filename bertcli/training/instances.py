"""The folder that `bertcli pretrain prepare` writes, read: rows for training, texts for people.

    data = Instances(Path("instances"))
    data.rows["input_ids"][0]     # int32 [max_length]
    print(data.shown(0))          # tokens: [CLS] the man went to [MASK] store ...

No torch.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertcli.errors import InputError
from bertcli.families.family import CHECKS
from bertcli.io.typed_json import is_regular, read_object, whole_number
from bertcli.model_folder.files import TOKENIZER_FILES
from bertcli.runs.identity import refuse_changed_file
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.options import INDEX
from bertcli.training.prepare import FORMAT, ROWS, VERSION, row_type

AGAIN = "run bertcli pretrain prepare again"
MOST = 1 << 22  # tokens of a vocabulary, or of an instance


class TrainingInstance(NamedTuple):
    """An instance as people read it.

    Source: TrainingInstance in create_pretraining_data.py of google-research/bert.
    """

    tokens: list[str]  # with [MASK] and random tokens in place of some
    segment_ids: list[int]
    is_random_next: bool
    masked_lm_positions: list[int]
    masked_lm_labels: list[str]  # the tokens that were there

    def __str__(self) -> str:
        return "\n".join(
            (
                f"tokens: {' '.join(self.tokens)}",
                f"segment_ids: {' '.join(map(str, self.segment_ids))}",
                f"is_random_next: {self.is_random_next}",
                f"masked_lm_positions: {' '.join(map(str, self.masked_lm_positions))}",
                f"masked_lm_labels: {' '.join(self.masked_lm_labels)}",
            )
        )


class Instances:
    """The folder that `PrepareRun` wrote; its ``rows`` are mapped, not read.

    Raises InputError or ModelError where there is none, or none of this version, or where the file
    has not the size that the index says. What the file holds is checked by ``verify`` only.
    """

    def __init__(self, folder: Path) -> None:
        index = read_object(folder / INDEX, InputError)
        if (index.get("format"), index.get("version")) != (FORMAT, VERSION):
            raise InputError(f"{folder / INDEX}: no instances of version {VERSION} found", AGAIN)
        index.hint = AGAIN
        self.folder, self.index = folder, index
        self.max_length, self.max_predictions, self.vocab_size, self.pad_token_id = (
            index.needed(key, whole_number(0, MOST))
            for key in ("max_length", "max_predictions", "vocab_size", "pad_token_id")
        )
        self.extra_embeddings, self.extra_fields = (
            index.needed(key, CHECKS[key]) for key in ("extra_embeddings", "extra_fields")
        )
        kind = row_type(self.max_length, self.max_predictions, self.extra_embeddings)
        size = kind.itemsize * index.object("statistics").needed("instances", whole_number(1))
        rows = folder / ROWS
        if not is_regular(rows, InputError) or rows.stat().st_size != size:
            raise InputError(f"{rows}: has not the {size:,} bytes that {INDEX} says", AGAIN)
        self.rows = np.memmap(rows, kind, "r")

    def __len__(self) -> int:
        return len(self.rows)

    def verify(self) -> None:
        """Check the sha256 of every file. Raises InputError when one was changed."""
        hashes = self.index.object("sha256")
        for name in (ROWS, *(name for name in TOKENIZER_FILES if name in hashes)):
            refuse_changed_file(self.folder / name, hashes.text(name), InputError, AGAIN)

    def shown(self, number: int) -> TrainingInstance:
        """Return an instance, counted from 0, with its tokens. InputError for unknown ids."""
        row = self.rows[number]
        length = int(row["lengths"])
        masked = int(row["masked_lm_counts"])
        return TrainingInstance(
            self.tokenizer.convert_ids_to_tokens(row["input_ids"][:length].tolist()),
            row["token_type_ids"][:length].tolist(),
            bool(row["next_sentence_labels"]),
            row["masked_lm_positions"][:masked].tolist(),
            self.tokenizer.convert_ids_to_tokens(row["masked_lm_ids"][:masked].tolist()),
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was used."""
        return Tokenizer.load(self.folder)
