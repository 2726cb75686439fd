"""Whether a model folder or a file of vectors is sound: what `bertcli inspect --verify` checks.

A model's tensors are those of its class, all its numbers and those of the modules beside it are
finite, hashes match. Of a file the hash is compared; its numbers were looked at when it was read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import BertcliError, ModelError
from bertcli.files.paths import sha256
from bertcli.files.typed_json import read_object
from bertcli.hub import DEFAULT_MODEL, DEFAULT_WEIGHTS_SHA256, ModelFolder
from bertcli.inspection.folder import FolderReport, ModelReport, StaticReport
from bertcli.inspection.vector_file import FileReport

if TYPE_CHECKING:
    import numpy as np

    Arrays = Iterator[tuple[str, np.ndarray]]


@dataclass(frozen=True)
class VerifyCheck:
    """A check and its result; `ok` is None where there was nothing to compare with."""

    what: str
    ok: bool | None
    detail: str = ""


def verify_model(report: FolderReport | StaticReport) -> Iterator[VerifyCheck]:
    """Yield one check after the other, as each is done."""
    if report.weights.format != "openvino":  # an exported graph has hashes alone
        if isinstance(report, FolderReport):
            yield _loads(report)
        from bertcli.checkpoints.tensors import mapped

        arrays = ((stored.name, mapped(stored)) for stored in report.tensors)
        yield _finite("every number is finite", arrays)
    yield from _modules(report)
    for path in report.weights.files:
        yield _hash(report.folder, path)
    if isinstance(report, FolderReport):
        what, unit = "the tokenizer fits the word embeddings", "embeddings"
        rows = report.config.vocab_size
    else:
        what, rows, unit = "every token has a vector", report.tokens, "vectors"
    if report.tokenizer is None:
        yield VerifyCheck(what, False, report.warnings[0])
    else:
        tokens, fits = report.tokenizer["vocabulary_size"], report.tokenizer["largest_id"] < rows
        yield VerifyCheck(what, fits, f"{tokens:,} tokens, {rows:,} {unit}")


def _loads(report: FolderReport) -> VerifyCheck:
    from bertcli.checkpoints import shapes
    from bertcli.checkpoints.weights import report_on

    named = report.config.family.their_class(report.architecture)
    what = f"every tensor of {named} is present, with its shape"
    try:
        loaded = report_on(report.bert, report.architecture)
        loaded.refuse()
    except ModelError as failed:
        return VerifyCheck(what, False, str(failed))
    numbers = shapes.count(loaded.config, loaded.model, loaded.pooler)
    return VerifyCheck(what, True, f"{numbers:,} parameters, {loaded.dtype}")


def _modules(report: ModelReport) -> Iterator[VerifyCheck]:
    """Check what stands beside the encoder: modules, and the layers of ColBERT and BGE-M3."""
    from bertcli.checkpoints.scan import TERM_TABLE, find_weights, read_modules, read_routes
    from bertcli.embedding.late_interaction import BGE, linear
    from bertcli.embedding.options import COLBERT
    from bertcli.embedding.sentence_modules import READERS, linear_in
    from bertcli.embedding.sparse import BGE as SPARSE_BGE
    from bertcli.embedding.sparse import read_terms
    from bertcli.tokenizing.tokenizer import Tokenizer

    def terms(place: Path) -> Any:
        return read_terms(place, Tokenizer.load(folder))

    folder = report.folder.path
    readers: dict[str, Callable[[], Any]] = {}
    for module in (*read_modules(folder), *chain(*read_routes(folder).values())):
        kind, place = module.kind.rpartition(".")[2], folder / module.path
        if kind == TERM_TABLE:
            readers[f"{module.path} ({kind})"] = partial(terms, place)
        elif kind in READERS and kind != "Normalize":
            readers[f"{module.path} ({kind})"] = partial(READERS[kind], place)
    for name in (BGE, SPARSE_BGE):
        if (folder / name).exists():
            readers[name] = partial(linear, folder / name)
    if isinstance(report, FolderReport) and COLBERT in report.config.architectures:
        layer = partial(linear_in, find_weights(report.bert), report.bert, "linear.")
        readers["the linear layer of ColBERT"] = layer
    for name, read in readers.items():
        yield _finite(f"{name}: every number is finite", _numbers(read))


def _numbers(read: Callable[[], Any]) -> Arrays:
    """Yield the arrays of a module, which is read then."""
    import numpy as np

    values = vars(read()).items()
    yield from ((name, value) for name, value in values if isinstance(value, np.ndarray))


def _finite(what: str, arrays: Arrays) -> VerifyCheck:
    import numpy as np

    bad, numbers = [], 0
    try:
        for name, array in arrays:
            numbers += array.size
            if wrong := int((~np.isfinite(array)).sum()):
                bad.append(f"{name} ({wrong:,})")
    except ModelError as failed:
        return VerifyCheck(what, False, str(failed))
    if bad:
        more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
        return VerifyCheck(what, False, f"NaN or infinite: {', '.join(bad[:4])}{more}")
    return VerifyCheck(what, numbers > 0, f"{numbers:,} numbers")


def _hash(folder: ModelFolder, path: Path) -> VerifyCheck:
    """Compare with the hash of the default model, or with the file's name in the hub's cache."""
    what = f"sha256 of {path.name}"
    if not path.is_file():
        return VerifyCheck(what, False, f"{path}: not a regular file")
    digest = sha256(path)
    if digest == DEFAULT_WEIGHTS_SHA256:
        return VerifyCheck(what, True, f"{digest}: {DEFAULT_MODEL}")
    blob = Path(os.path.realpath(path)).name  # the hub's cache calls a large file by its hash
    published = blob if re.fullmatch("[0-9a-f]{64}", blob) else None
    if folder.name == DEFAULT_MODEL and path.name == "model.safetensors":
        published = DEFAULT_WEIGHTS_SHA256
    hashes = read_object(folder.path / "manifest.json").get("sha256")  # of `export`
    if isinstance(hashes, dict):
        published = hashes.get(path.relative_to(folder.path).as_posix()) or published
    if published is None:
        return VerifyCheck(what, None, f"{digest} (no published hash to compare with)")
    same = digest == published
    return VerifyCheck(what, same, digest if same else f"{digest}, not {published}")


def verify_file(report: FileReport) -> VerifyCheck:
    """Compare the file with the hash in its manifest; `ok` is None where there is no hash."""
    recorded = (report.manifest or {}).get("sha256")
    try:
        digest = sha256(report.path)
    except OSError as failed:
        raise BertcliError(f"{report.path}: {failed.strerror}") from None
    if not isinstance(recorded, str):
        return VerifyCheck(f"sha256 {digest} (no manifest to compare with)", None)
    what = f"sha256 {digest}" + ("" if digest == recorded else f", not {recorded}")
    return VerifyCheck(what, digest == recorded)
