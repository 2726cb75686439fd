"""A table of token vectors as a report: a model without an encoder, of which less is to be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bertcli.checkpoints.scan import STATIC, bert_folder, find_config, require_weights
from bertcli.checkpoints.tensors import read_tensors
from bertcli.embedding.sentence_config import read_sentence
from bertcli.files.typed_json import read_object
from bertcli.hub import ModelFolder
from bertcli.inspection.folder import ModelReport
from bertcli.inspection.tokenizer_report import read_tokenizer


@dataclass(frozen=True, kw_only=True)
class StaticReport(ModelReport):
    """All that `bertcli inspect` reports about a table of token vectors."""

    tokens: int  # that have a vector
    width: int
    config: dict[str, Any]

    @property
    def numbers(self) -> int:
        """How many numbers its files hold."""
        return sum(one.numbers for one in self.tensors)

    def to_json(self, *, with_tensors: bool = False) -> dict[str, Any]:
        """Return the report as JSON values."""
        dtypes: Counter[str] = Counter()
        for one in self.tensors:
            dtypes[one.dtype] += one.numbers
        first = {
            "architecture": {"name": STATIC, "declared": [], "library": self.sentence.static},
            "parameters": {"total": self.numbers, "in_file": self.numbers},
            "table": {"tokens": self.tokens, "dimensions": self.width},
        }
        return {
            **self._json(first, dtypes, self.folder.path),
            "config": self.config,
            **({"tensors": self.tensor_rows} if with_tensors else {}),
        }

    def _concerns(self) -> Iterator[str]:
        if self.weights.format == "pytorch":
            yield "pytorch_model.bin instead of safetensors: slower to load, and a pickle"
        if self.tokenizer and self.tokenizer.largest_id >= self.tokens:
            yield (
                f"token ids go up to {self.tokenizer.largest_id:,}, but only {self.tokens:,} "
                "tokens have a vector: this model cannot be used"
            )


def inspect_static(folder: ModelFolder) -> StaticReport:
    """Read what is in the folder of a table. ModelError when it is incomplete or broken."""
    from bertcli.inference.static_table import read_table

    inner = bert_folder(folder.path)
    weights, table, config = require_weights(inner), read_table(inner), find_config(inner)
    tokenizer, said = read_tokenizer(folder.path)
    return StaticReport(
        folder=folder,
        weights=weights,
        tensors=read_tensors(weights),
        tokens=table.tokens,
        width=table.width,
        tokenizer=tokenizer,
        tokenizer_warnings=said,
        sentence=read_sentence(folder.path),
        config=dict(read_object(config)) if config else {},
    )
