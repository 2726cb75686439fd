"""The weights of a model as NumPy arrays, by canonical name; without torch.

    weights = read_weights(Path("bert-base-uncased"), "BertModel")
    weights.arrays["bert.pooler.dense.weight"].shape    # (768, 768)

Files are mapped: what nobody looks at costs nothing, and what is written to an array stays in this
process. `report_on` is the half without numbers, which `load` shares: what is there, what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bertcli.checkpoints.comparison import LoadReport, compared, tied_pairs
from bertcli.checkpoints.names import transposed
from bertcli.checkpoints.scan import bert_folder, find_config, read_config, require_weights
from bertcli.checkpoints.stored_tensor import MappedFiles, StoredTensor, bits
from bertcli.checkpoints.tensors import read_tensors
from bertcli.errors import ModelError
from bertcli.models.config import BertConfig

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Weights:
    """The weights of a class: all that it needs, in its shapes."""

    config: BertConfig
    kind: str
    # Canonical name, with `bert.` in front of what is BERT -> its numbers: float32, float16, or
    # uint16, which are the bits of bfloat16. A tied tensor is one array under both names.
    arrays: Mapping[str, np.ndarray]


def report_on(
    folder: Path,
    kind: str | None = None,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
) -> LoadReport:
    """Compare the tensors of a folder with those of a class, without reading numbers.

    ``kind`` is the class, by default the one that config.json names first. ``pooler`` is for
    BertModel: None is yes where there are weights for it. ModelError when the files cannot be read
    at all, or the config contradicts itself.
    """
    folder = bert_folder(folder)
    config = read_config(folder)
    if labels:
        config = config.with_labels(labels)
    name = kind or next(iter(config.architectures), "BertModel")
    if pooler is not None and name != "BertModel":
        raise ValueError(f"{name} has a fixed choice of pooler")
    if pooler and not config.structure.pooler:
        title = config.family.title
        raise ModelError(f"{folder}: models of the family {title} have no pooler", "pool otherwise")
    tensors = read_tensors(require_weights(folder))
    try:
        config.refuse_unbuildable(name)
        report = compared(folder, config, name, tensors, pooler)
    except ModelError as bad:  # which knows of no files
        raise ModelError(f"{find_config(folder)}: {bad}", bad.hint) from None
    for first, second in report.twice.values():
        raise ModelError(
            f"{second.file}: {first.name} and {second.name} are the same tensor of the model"
        )
    # transformers looks as well: where the numbers differ, the config is wrong about the tie.
    if name != "BertModel" and report.config.tie_word_embeddings:
        files = MappedFiles()
        if not all(_same(*pair, files) for pair in tied_pairs(report.stored)):
            untied = replace(report.config, tie_word_embeddings=False)
            report = replace(report, config=untied)
    return report


def read_weights(folder: Path, kind: str, pooler: bool | None = None) -> Weights:
    """Map the weights that a class needs; arguments and errors as of `report_on`.

    ModelError, naming file and tensors, unless every tensor of the class is there in its shape.
    """
    import numpy as np

    report = report_on(folder, kind, pooler)
    report.refuse()
    files = MappedFiles()
    arrays: dict[StoredTensor, np.ndarray] = {}
    for stored in report.used.values():
        if stored not in arrays:
            array = array_of(stored, files)
            number = np.float32 if stored.dtype == "F64" else array.dtype
            arrays[stored] = np.require(array, number, "C")
    return Weights(
        report.config, kind, {name: arrays[stored] for name, stored in report.used.items()}
    )


def array_of(stored: StoredTensor, files: MappedFiles) -> np.ndarray:
    """Return a tensor in the shape that a model has: see `StoredTensor.model_shape`."""
    import numpy as np

    whole, (place, parts) = bits(stored, files), stored.part
    if parts > 1:
        size = stored.model_shape[0]
        whole = whole[place * size : (place + 1) * size]
    elif transposed(stored.name):
        whole = whole.T
    return np.require(whole, None, "A")  # old files have numbers at odd places


def _same(first: StoredTensor, second: StoredTensor, files: MappedFiles) -> bool:
    import numpy as np

    same = first.dtype == second.dtype
    return same and np.array_equal(array_of(first, files), array_of(second, files))
