"""Read the folder of `bertcli pretrain prepare`: rows for training, instances as text.

    data = Instances(Path("instances"))
    data.rows["input_ids"][0]     # int32 [max_length]
    print(data.example(0))        # tokens: [CLS] the man went to [MASK] store ...

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
from bertcli.training.prepare import FORMAT, ROWS_FILE, VERSION, row_type

REPEAT = "run bertcli pretrain prepare again"
MAX_SIZE = 1 << 22  # maximum size of a vocabulary, and of an instance in tokens


class TrainingInstance(NamedTuple):
    """An instance in readable form.

    Source: TrainingInstance in create_pretraining_data.py of google-research/bert.
    """

    tokens: list[str]  # some replaced by [MASK] or random tokens
    segment_ids: list[int]
    is_random_next: bool
    masked_lm_positions: list[int]
    masked_lm_labels: list[str]  # the original tokens

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
    """The folder that `PrepareRun` wrote; its ``rows`` are a mapped file.

    Raises InputError or ModelError for another folder or version, and if the size of the file does
    not match the index. Only ``verify`` checks the contents of the files.
    """

    def __init__(self, folder: Path) -> None:
        index = read_object(folder / INDEX, InputError)
        if (index.get("format"), index.get("version")) != (FORMAT, VERSION):
            raise InputError(f"{folder / INDEX}: no instances of version {VERSION} found", REPEAT)
        index.hint = REPEAT
        self.folder = folder
        self.index = index
        is_size = whole_number(0, MAX_SIZE)
        self.max_length = index.needed("max_length", is_size)
        self.max_predictions = index.needed("max_predictions", is_size)
        self.vocab_size = index.needed("vocab_size", is_size)
        self.pad_token_id = index.needed("pad_token_id", is_size)
        self.extra_embeddings = index.needed("extra_embeddings", CHECKS["extra_embeddings"])
        self.extra_fields = index.needed("extra_fields", CHECKS["extra_fields"])
        dtype = row_type(self.max_length, self.max_predictions, self.extra_embeddings)
        count = index.object("statistics").needed("instances", whole_number(1))
        size = dtype.itemsize * count
        path = folder / ROWS_FILE
        if not is_regular(path, InputError) or path.stat().st_size != size:
            raise InputError(f"{path}: has not the {size:,} bytes that {INDEX} says", REPEAT)
        self.rows = np.memmap(path, dtype, "r")

    def __len__(self) -> int:
        return len(self.rows)

    def verify(self) -> None:
        """Check the sha256 of every file. Raises InputError if one was changed."""
        hashes = self.index.object("sha256")
        for name in (ROWS_FILE, *(name for name in TOKENIZER_FILES if name in hashes)):
            refuse_changed_file(self.folder / name, hashes.text(name), InputError, REPEAT)

    def example(self, number: int) -> TrainingInstance:
        """Return an instance, counted from 0, as text. Raises InputError for unknown ids."""
        row = self.rows[number]
        length = int(row["lengths"])
        masked_count = int(row["masked_lm_counts"])
        return TrainingInstance(
            self.tokenizer.convert_ids_to_tokens(row["input_ids"][:length].tolist()),
            row["token_type_ids"][:length].tolist(),
            bool(row["next_sentence_labels"]),
            row["masked_lm_positions"][:masked_count].tolist(),
            self.tokenizer.convert_ids_to_tokens(row["masked_lm_ids"][:masked_count].tolist()),
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the instances."""
        return Tokenizer.load(self.folder)
