"""What a checkpoint holds, compared with what a model needs: the report and refusals of a load."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bertcli.checkpoints.comparison import Shape, compare
from bertcli.checkpoints.names import HEADS, TIED, classes_in, heads_in, ignored, name_in
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.errors import ModelError, counted
from bertcli.families.bert import BERT
from bertcli.families.family import BASE, Family
from bertcli.models.config import BertConfig

CHOICE = "BertForMultipleChoice"
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.")


@dataclass(frozen=True)
class LoadReport:
    """What a load found.

    Tensors are named as in the files; missing, mismatched and fresh ones as in the model.
    """

    folder: Path
    model: str  # name of the class
    dtype: str  # as torch calls it; of the model, which is that of the files unless asked otherwise
    files: tuple[Path, ...]
    heads: tuple[str, ...]  # in the files
    unused: tuple[str, ...] = ()  # heads in the files that the class does not have
    unused_weights: tuple[str, ...] = ()  # the tensors of those heads, and unexpected ones
    missing: tuple[str, ...] = ()
    mismatched: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)  # file's, model's
    misplaced: tuple[str, ...] = ()  # of BERT or of a head in use, but not of this config
    unexpected: tuple[str, ...] = ()  # of something that is not BERT
    unreadable: Mapping[str, str] = field(default_factory=dict)  # name -> its type
    ignored: tuple[str, ...] = ()  # buffers and the like, not weights
    tied: tuple[str, ...] = ()  # the model's names for tensors that have another name as well
    layers: tuple[int, int] = (0, 0)  # in the files, in the config
    classes: tuple[str, ...] = ()  # that the heads in the files allow
    fresh: tuple[str, ...] = ()  # of the head: not read, but initialised at random
    family: Family = BERT

    @property
    def complete(self) -> bool:
        """Whether the files hold exactly this model."""
        return not (self.missing or self.mismatched or self.misplaced or self.unreadable)

    def with_fresh_head(self) -> LoadReport:
        """Return the report of a load that initialises what a head lacks, or has for other labels.

        What BERT itself lacks is still missing.
        """
        heads = tuple(name_in(True, start) for start in HEADS.values())
        fresh = [name for name in (*self.missing, *self.mismatched) if name.startswith(heads)]
        return replace(
            self,
            fresh=tuple(fresh),
            missing=tuple(name for name in self.missing if name not in fresh),
            mismatched={name: both for name, both in self.mismatched.items() if name not in fresh},
        )

    def refuse(self) -> None:
        """Raise a ModelError that names all that is wrong, unless the report is complete."""
        if self.complete:
            return
        where = self.files[0] if len(self.files) == 1 else self.folder
        raise ModelError(f"{where}: {'; '.join(self.faults())}", self._hint())

    def faults(self) -> list[str]:
        """List why the files do not hold this model, one phrase each."""
        faults = []
        inside, described = self.layers
        if inside != described:
            faults.append(f"{counted(inside, 'layer')} in the weights, {described} by the config")
        if self.missing:
            heads = ", ".join(self.heads) or "none"
            needed = _some([*map(self._in_files, self.missing)])
            named = self.family.their_class(self.model)
            faults.append(f"{named} needs {needed}; available heads: {heads}")
        if self.mismatched:
            shapes = self.mismatched.items()
            faults.append(_some([_shapes(self._in_files(name), *both) for name, both in shapes]))
        if self.misplaced:
            faults.append(f"not part of this config: {_some(self.misplaced)}")
        if self.unreadable:
            types = [f"{name} ({kind})" for name, kind in self.unreadable.items()]
            faults.append(f"not floating-point numbers: {_some(types)}")
        return faults

    def _in_files(self, name: str) -> str:
        """Return how the files of this class call a tensor of the model."""
        base = BASE if self.model == "BertModel" else ""
        return self.family.theirs(base + name, self.model)

    def _hint(self) -> str:
        wrong = {*self.mismatched, *self.misplaced}
        if self.unreadable:
            return "quantised weights are not supported; use the original model"
        if wrong and all(name.endswith(("classifier.weight", "classifier.bias")) for name in wrong):
            return "id2label in config.json must have as many labels as the classifier"
        heads = tuple(start for head, start in HEADS.items() if head not in self.heads)
        if not wrong and all(name.startswith((*heads, "pooler.")) for name in self.missing):
            return f"these weights can be loaded as {', '.join(self.classes)}"
        return "config.json and the weights belong to different models, or one is incomplete"


def _some(names: Collection[str]) -> str:
    others = len(names) - 3
    return ", ".join([*names][:3]) + (f" and {others} more" if others > 0 else "")


def _shapes(name: str, inside: Shape, described: Shape) -> str:
    return f"{name} has shape {[*inside]} in the file and {[*described]} by the config"


# --- making one ---


def report_on(
    folder: Path,
    config: BertConfig,
    model: str,
    needed: Mapping[str, Shape],
    stored: Mapping[str, StoredTensor],
) -> LoadReport:
    """Report on canonical names and shapes of a model's tensors and of those in the files."""
    headed = not all(name.startswith(BASE) for name in needed)
    tied = config.tie_word_embeddings
    compared = compare(needed, stored, tied)
    types = {tensor.name: tensor.dtype for tensor in compared.used.values()}
    heads = heads_in(needed)
    unused = tuple(head for head in heads_in(compared.spare) if head not in heads)
    foreign, kin = tuple(HEADS[head] for head in unused), (BASE, *(HEADS[head] for head in heads))
    odd = [name for name in compared.spare if not (name.startswith(foreign) or ignored(name))]
    classes = classes_in(stored, config)
    if not _scores_one(stored):
        classes = [name for name in classes if name != CHOICE]
    return LoadReport(
        folder=folder,
        model=model,
        dtype=_widest(types.values()),
        files=tuple(sorted({tensor.file for tensor in stored.values()})),
        heads=tuple(heads_in(stored)),
        unused=unused,
        unused_weights=tuple(stored[name].name for name in compared.spare if not ignored(name)),
        missing=tuple(name_in(headed, name) for name in compared.missing),
        mismatched={name_in(headed, name): both for name, both in compared.misshapen.items()},
        misplaced=tuple(stored[name].name for name in odd if name.startswith(kin)),
        unexpected=tuple(stored[name].name for name in odd if not name.startswith(kin)),
        unreadable={name: kind for name, kind in types.items() if kind not in FLOATS},
        ignored=tuple(tensor.name for name, tensor in stored.items() if ignored(name)),
        tied=tuple(name for name in TIED if tied and name in needed),
        layers=(_layers(stored), config.distinct_layers),
        classes=tuple(map(config.family.their_class, classes)),
        family=config.family,
    )


def _widest(types: Collection[str]) -> str:
    """Return the narrowest type that holds the numbers of all, as torch promotes them."""
    halves = {kind for kind in types if kind in ("F16", "BF16")}
    if "F64" in types:
        return "float64"
    if len(halves) != 1 or "F32" in types:
        return "float32"
    return FLOATS[halves.pop()]


def _scores_one(stored: Mapping[str, StoredTensor]) -> bool:
    """Tell whether the classifier has one output, as only that of multiple choice has."""
    weight = stored.get("classifier.weight")
    return weight is not None and weight.model_shape[:1] == (1,)


def _layers(names: Collection[str]) -> int:
    return len({match[1] for name in names if (match := LAYER.match(name))})
