"""A table of token vectors as a report: a model without an encoder, of which less is to be said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertcli.checkpoints.scan import (
    STATIC,
    WeightFiles,
    bert_folder,
    find_config,
    require_weights,
)
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.checkpoints.tensors import read_tensors
from bertcli.embedding.sentence_config import Sentence, read_sentence
from bertcli.files.typed_json import read_object
from bertcli.hub import ModelFolder
from bertcli.inspection.folder import place_row, sentence_row, tensor_row, weights_row
from bertcli.inspection.tokenizer_report import TokenizerInfo, read_tokenizer, tokenizer_details


@dataclass(frozen=True)
class StaticReport:
    """All that `bertcli inspect` reports about a table of token vectors."""

    folder: ModelFolder
    inner: Path  # the folder with the table: a part of the folder, or all of it
    weights: WeightFiles
    tensors: Sequence[StoredTensor]
    tokens: int  # that have a vector
    width: int
    tokenizer: TokenizerInfo | None
    sentence: Sentence
    config: dict[str, Any]
    tokenizer_error: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def numbers(self) -> int:
        """How many numbers its files hold."""
        return sum(one.numbers for one in self.tensors)

    def to_json(self, *, with_tensors: bool = False) -> dict[str, Any]:
        """Return the report as JSON values."""
        dtypes: dict[str, int] = {}
        for one in self.tensors:
            dtypes[one.dtype] = dtypes.get(one.dtype, 0) + one.numbers
        details = {} if self.tokenizer is None else tokenizer_details(self.folder.path)
        rows = [tensor_row(one) for one in self.tensors]
        return {
            **place_row(self.folder),
            "architecture": {"name": STATIC, "declared": [], "library": self.sentence.static},
            "parameters": {"total": self.numbers, "in_file": self.numbers},
            "table": {"tokens": self.tokens, "dimensions": self.width},
            "weights": weights_row(self.weights, dtypes, len(self.tensors)),
            "tokenizer": self.tokenizer and asdict(self.tokenizer) | details,
            "sentence": sentence_row(self.sentence),
            "warnings": self.warnings,
            "config": self.config,
            **({"tensors": rows} if with_tensors else {}),
        }


def inspect_static(folder: ModelFolder) -> StaticReport:
    """Read what is in the folder of a table. ModelError when it is incomplete or broken."""
    from bertcli.inference.static_table import read_table

    inner = bert_folder(folder.path)
    weights, table = require_weights(inner), read_table(inner)
    warnings: list[str] = []
    tokenizer, error = read_tokenizer(folder.path, warnings)
    config = find_config(inner)
    report = StaticReport(
        folder=folder,
        inner=inner,
        weights=weights,
        tensors=read_tensors(weights),
        tokens=table.tokens,
        width=table.width,
        tokenizer=tokenizer,
        sentence=read_sentence(folder.path),
        config=dict(read_object(config)) if config else {},
        tokenizer_error=error,
        warnings=warnings,
    )
    warnings.extend(_concerns(report))
    return report


def _concerns(report: StaticReport) -> Iterator[str]:
    if report.weights.format == "pytorch":
        yield "pytorch_model.bin instead of safetensors: slower to load, and a pickle"
    if report.tokenizer and report.tokenizer.largest_id >= report.tokens:
        yield (
            f"token ids go up to {report.tokenizer.largest_id:,}, but only {report.tokens:,} "
            "tokens have a vector: this model cannot be used"
        )
