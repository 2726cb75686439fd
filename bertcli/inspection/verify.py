"""Whether a model folder or a file of vectors is sound: what `bertcli inspect --verify` checks.

A model loads, all its numbers are finite, hashes match: that needs torch, which is imported when it
starts. Of a file the hash is compared; its numbers were looked at when it was read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertcli.errors import BertcliError, ModelError
from bertcli.files.digests import sha256
from bertcli.hub import DEFAULT_MODEL, DEFAULT_WEIGHTS_SHA256, ModelFolder
from bertcli.inspection.folder import FolderReport, ModelReport
from bertcli.inspection.static_report import StaticReport
from bertcli.inspection.vector_file import FileReport


@dataclass(frozen=True)
class VerifyCheck:
    """A check and its result; `ok` is None where there was nothing to compare with."""

    what: str
    ok: bool | None
    detail: str = ""


def verify_model(report: FolderReport) -> Iterator[VerifyCheck]:
    """Yield one check after the other, as each is done."""
    yield _loads(report)
    yield _finite(report)
    for path in report.weights.files:
        yield _hash(report.folder, path)
    what = "the tokenizer fits the word embeddings"
    yield _tokenizer(report, what, report.config.vocab_size, "embeddings")


def verify_static(report: StaticReport) -> Iterator[VerifyCheck]:
    """Yield one check of a table of token vectors after the other. Nothing of it needs torch."""
    yield _finite_table(report)
    for path in report.weights.files:
        yield _hash(report.folder, path)
    yield _tokenizer(report, "every token has a vector", report.tokens, "vectors")


def _finite_table(report: StaticReport) -> VerifyCheck:
    import numpy as np

    from bertcli.checkpoints.stored_tensor import mapped

    bad = []
    for stored in report.tensors:
        if wrong := int((~np.isfinite(mapped(stored))).sum()):
            bad.append(f"{stored.name} ({wrong:,})")
    found = f"NaN or infinite: {', '.join(bad)}" if bad else f"{report.numbers:,} numbers"
    return VerifyCheck("every number is finite", not bad, found)


def _loads(report: FolderReport) -> VerifyCheck:
    from bertcli.checkpoints.load import load
    from bertcli.models.heads import ARCHITECTURES

    named = report.config.family.their_class(report.architecture)
    what = f"every tensor of {named} is present, with its shape"
    try:
        model, loaded = load(report.bert, ARCHITECTURES[report.architecture])
    except ModelError as failed:
        return VerifyCheck(what, False, str(failed))
    numbers = sum(one.numel() for one in model.parameters())
    return VerifyCheck(what, True, f"{numbers:,} parameters, {loaded.dtype}")


def _finite(report: FolderReport) -> VerifyCheck:
    from bertcli.checkpoints.scan import require_weights
    from bertcli.checkpoints.tensor_reader import TensorReader

    what = "every number is finite"
    bad, numbers, reader = [], 0, TensorReader()
    try:
        require_weights(report.bert)
        for stored in report.tensors:
            tensor = reader.read(stored)
            numbers += tensor.numel()
            if tensor.is_floating_point() and not tensor.isfinite().all():
                bad.append(f"{stored.name} ({int((~tensor.isfinite()).sum()):,})")
    except ModelError as failed:
        return VerifyCheck(what, False, str(failed))
    if bad:
        more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
        return VerifyCheck(what, False, f"NaN or infinite: {', '.join(bad[:4])}{more}")
    return VerifyCheck(what, True, f"{numbers:,} numbers")


def _hash(folder: ModelFolder, path: Path) -> VerifyCheck:
    """Compare with the hash of the default model, or with the file's name in the hub's cache."""
    what = f"sha256 of {path.name}"
    if not path.is_file():
        return VerifyCheck(what, False, f"{path}: not a regular file")
    found = sha256(path)
    if found == DEFAULT_WEIGHTS_SHA256:
        return VerifyCheck(what, True, f"{found}: {DEFAULT_MODEL}")
    wanted = None
    if folder.name == DEFAULT_MODEL and path.name == "model.safetensors":
        wanted = DEFAULT_WEIGHTS_SHA256
    blob = Path(os.path.realpath(path)).name  # the hub's cache calls a large file by its hash
    if re.fullmatch("[0-9a-f]{64}", blob):
        wanted = wanted or blob
    if wanted is None:
        return VerifyCheck(what, None, f"{found} (no published hash to compare with)")
    return VerifyCheck(
        what, found == wanted, found if found == wanted else f"{found}, not {wanted}"
    )


def _tokenizer(report: ModelReport, what: str, rows: int, unit: str) -> VerifyCheck:
    if report.tokenizer is None:
        return VerifyCheck(what, False, report.tokenizer_warnings[0])
    tokens, fits = report.tokenizer.vocabulary_size, report.tokenizer.largest_id < rows
    return VerifyCheck(what, fits, f"{tokens:,} tokens, {rows:,} {unit}")


def verify_file(report: FileReport) -> VerifyCheck:
    """Compare the file with the hash in its manifest; `ok` is None where there is no hash."""
    wanted = (report.manifest or {}).get("sha256")
    try:
        found = sha256(report.path)
    except OSError as failed:
        raise BertcliError(f"{report.path}: {failed.strerror}") from None
    if not isinstance(wanted, str):
        return VerifyCheck(f"sha256 {found} (no manifest to compare with)", None)
    what = f"sha256 {found}" + ("" if found == wanted else f", not {wanted}")
    return VerifyCheck(what, found == wanted)
