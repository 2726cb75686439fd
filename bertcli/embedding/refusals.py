"""Texts that can have no vector, and choices that a model with ids for words leaves no room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertcli.checkpoints.scan import STATIC, read_config
from bertcli.embedding.options import EmbedOptions
from bertcli.errors import InputError, ModelError, UsageError
from bertcli.inference.runtime import ModelSpec, refuse_extra
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Encoded

if TYPE_CHECKING:
    from bertcli.embedding.late_interaction import LateInteraction


def refuse_changed_words(
    spec: ModelSpec, options: EmbedOptions, late: LateInteraction | None
) -> None:
    """Raise UsageError or ModelError where texts that have ids for their words get other words."""
    if not spec.extra or spec.kind == STATIC:
        return
    config = read_config(spec.folder)
    if late:
        refuse_extra(spec.folder, config)
    needs = "the model needs an id for each word, and this changes the words"
    if config.extra_embeddings and options.on_truncate == "chunk":
        raise UsageError(f"--on-truncate chunk: {needs}", "use --on-truncate window")
    if config.extra_embeddings and options.prompt:
        raise UsageError(f"--prompt: {needs}", "write it into the texts, with ids")


def refuse_cut(batch: Sequence[Encoded], limit: int) -> None:
    """Raise InputError for a text of which truncation took something away."""
    for item in batch:
        if item.cut:
            raise InputError(
                f"{item.record.where}: {item.length + item.cut} tokens, and {limit} is the limit",
                "--on-truncate warn truncates texts, window and chunk encode all of them",
            )


def refuse_empty(batch: Sequence[Encoded]) -> None:
    """Raise InputError for a text without a token, not even a special one."""
    for item in batch:
        if not item.length:
            raise InputError(
                f"{item.record.where}: has no tokens, so it has no vector",
                "leave out --no-special-tokens, or drop the text",
            )


def refuse_infinite(records: Sequence[Record], vectors: np.ndarray) -> None:
    """Raise ModelError for a record whose vectors [n, ...] hold NaN or infinity."""
    finite = np.isfinite(vectors).reshape(len(records), -1).all(axis=1)
    if not finite.all():
        record = records[int(finite.argmin())]
        raise ModelError(
            f"{record.where}: its vector contains NaN or infinity",
            "bertcli inspect --verify checks the weights; float16 overflows, float32 does not",
        )
