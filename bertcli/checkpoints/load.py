"""A folder and a model: load strictly, with a report, and save what transformers loads.

    model, report = load("bert-base-uncased")   # a folder
    save(model, model.config, "mine")

No tensor is initialised at random, unless a fresh head is asked for: each comes from the files, or
`load` fails and names what is missing. names.py has the old names, tensors.py the file formats,
comparison.py compares the weights with a class, and load_report.py says what is wrong.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import TypeVar  # torch needs it as well

from bertcli.checkpoints.comparison import Shape, by_canonical_name, partner, tied_pairs, ties
from bertcli.checkpoints.load_report import LoadReport, report_on
from bertcli.checkpoints.names import heads_in
from bertcli.checkpoints.scan import bert_folder, find_config, read_config, require_weights
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.checkpoints.tensor_reader import TensorReader
from bertcli.checkpoints.tensors import read_tensors
from bertcli.errors import ModelError, OutputError
from bertcli.families.family import BASE
from bertcli.files.atomic import own_folder, put_files
from bertcli.models.bert import Absent, BertModel
from bertcli.models.config import BertConfig
from bertcli.models.heads import BertWithHead, architecture
from bertcli.models.surgery import initialise_weight

Model: TypeAlias = BertModel | BertWithHead
M = TypeVar("M", bound=Model, default=Model)  # of what class a model is loaded
Device: TypeAlias = torch.device | str


# --- loading ---


def load(
    folder: str | Path,
    cls: type[M] | None = None,
    *,
    pooler: bool | None = None,
    device: Device = "cpu",
    dtype: torch.dtype | None = None,
    fresh: bool = False,
    labels: Sequence[str] = (),
) -> tuple[M, LoadReport]:
    """Load the model of a folder, in eval mode, with a report of what the folder holds.

    The class is the one that config.json names first. `pooler` is for BertModel: by default it
    has one when there are weights for it. `dtype` is by default that of the files, the widest if
    they mix several. On a CPU the weights stay mapped files until they are used. ModelError,
    naming file and tensors, unless every tensor of the model is there in its shape.

    A `fresh` head is for training: tensors of the head that the folder lacks, or has for another
    number of `labels`, are drawn at random; `report.fresh` names them.
    """
    reader = TensorReader()
    model, found, report = _plan(Path(folder), cls, pooler, reader, labels)
    report = report.with_fresh_head() if fresh else report
    report.refuse()
    target = getattr(torch, report.dtype) if dtype is None else dtype
    _fill(model, found, reader, torch.device(device), target, report.fresh)
    return model.eval(), replace(report, dtype=str(target).removeprefix("torch."))


def examine(folder: Path, cls: type[Model] | None = None) -> LoadReport:
    """Report what `load` would find, missing tensors included, without reading any numbers.

    ModelError when the files cannot be read at all.
    """
    return _plan(Path(folder), cls, None, TensorReader())[2]


def _plan(
    folder: Path,
    cls: type[Any] | None,
    pooler: bool | None,
    reader: TensorReader,
    labels: Sequence[str] = (),
) -> tuple[Any, dict[str, StoredTensor], LoadReport]:
    folder = bert_folder(folder)
    config = read_config(folder)
    if labels:
        config = config.with_labels(labels)
    made = architecture(config) if cls is None else cls
    if pooler is not None and not issubclass(made, BertModel):
        raise ValueError(f"{made.__name__} has a fixed choice of pooler")
    if pooler and not config.structure.pooler:
        title = config.family.title
        raise ModelError(f"{folder}: models of the family {title} have no pooler", "pool otherwise")
    tensors = read_tensors(require_weights(folder))
    found, twice = by_canonical_name(tensors, config.family, made.__name__)
    if twice:
        one, other = next(iter(twice.values()))
        both = f"{one.name} and {other.name}"
        raise ModelError(f"{other.file}: {both} are the same tensor of the model")
    if issubclass(made, BertWithHead) and not _tied(config, found, reader):
        config = replace(config, tie_word_embeddings=False)
    has_pooler = "pooler" in heads_in(found) if pooler is None else pooler
    try:
        model = _empty(made, config, has_pooler)
    except ModelError as bad:  # which knows of no files
        raise ModelError(f"{find_config(folder)}: {bad}", bad.hint) from None
    return model, found, report_on(folder, config, made.__name__, _wanted(model), found)


def _tied(config: BertConfig, found: Mapping[str, StoredTensor], reader: TensorReader) -> bool:
    """Tell whether names for one weight hold the same numbers, as far as the files have both.

    transformers looks as well: where the numbers differ, the config is wrong about the tie.
    """
    return ties(config, found) and all(
        _same(reader.read_for_model(found[one]), reader.read_for_model(found[other]))
        for one, other in tied_pairs(found)
    )


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype:
        return False
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation, which on `meta` would import sympy: 2 seconds."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, unless it draws random numbers."""
        named = dict(kwargs or {})
        if func is nn.init.normal_:
            return named["tensor"]
        return (torch.empty if func is torch.randn else func)(*args, **named)


def _empty(cls: type[M], config: BertConfig, pooler: bool) -> M:
    """Build a model without numbers: shapes only."""
    make: Callable[..., M] = cls
    with torch.device("meta"), _SkipInitialisation():
        return make(config, pooler) if issubclass(cls, BertModel) else make(config)


def _wanted(model: Model) -> dict[str, Shape]:
    """Return canonical name -> shape of a model's tensors."""
    base = "" if isinstance(model, BertWithHead) else BASE
    return {base + name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def _fill(
    model: Model,
    found: Mapping[str, StoredTensor],
    reader: TensorReader,
    device: torch.device,
    dtype: torch.dtype,
    fresh: Collection[str],
) -> None:
    @functools.cache  # a tensor with two names is read once
    def read(name: str) -> Tensor:
        return reader.read_for_model(found[name]).to(device=device, dtype=dtype)

    tied = model.config.tie_word_embeddings
    state = {}
    for name, wanted in zip(model.state_dict(), _wanted(model), strict=True):
        if name in fresh:
            state[name] = _drawn(model, name).to(device=device, dtype=dtype)
            continue
        source = partner(wanted, found, tied)
        own = tied or source == wanted
        state[name] = read(source) if own else read(source).clone()  # two parameters, not one
    model.load_state_dict(state, strict=True, assign=True)
    if isinstance(model, BertWithHead):
        model.tie()  # assign=True gave each name a parameter of its own


def _drawn(model: Model, name: str) -> Tensor:
    """Return a weight as before training."""
    weight = torch.empty(model.get_parameter(name).shape)
    initialise_weight(name, weight, model.config.initializer_range)
    return weight


# --- saving ---


def save(model: Model, config: BertConfig, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which transformers loads as well.

    A tied weight is written once, under the name that transformers chooses. Each file appears
    whole, and the config last: a folder in which saving was interrupted does not load.
    ValueError when `config` does not describe the model, as after `fuse_qkv`; OutputError when
    the folder cannot be written.
    """
    folder = Path(folder)
    weights = _as_saved(model)
    pooler = isinstance(model, BertModel) and not isinstance(model.pooler, Absent)
    if _wanted(_empty(type(model), config, pooler)) != _wanted(model):
        raise ValueError("the config does not describe the tensors of this model")
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    other = {key: value for key, value in config.other.items() if key != "torch_dtype"}
    names = (type(model).__name__,)
    said = replace(config, architectures=names, other={**other, "dtype": dtype}).to_json()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with own_folder(folder / "saving") as made:
            _write(made, {name: one.contiguous() for name, one in weights.items()}, said)
            put_files(made, folder, last="config.json")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{folder}: the model cannot be written: {reason}") from error


def _as_saved(model: Model) -> dict[str, Tensor]:
    """Return the weights under the names that transformers gives them, stacked where it does."""
    family, kind = model.config.family, type(model).__name__
    base = "" if isinstance(model, BertWithHead) else BASE
    weights = {base + name: weight.detach() for name, weight in model.named_parameters()}
    parts: dict[str, list[str]] = {}
    for name in weights:
        parts.setdefault(family.theirs(name, kind), []).append(name)
    stacked = {name: family.ours(name, kind) for name, some in parts.items() if some[1:]}
    whole = {name: weights[some[0]] for name, some in parts.items()}
    return whole | {name: torch.cat([weights[one] for one in stacked[name]]) for name in stacked}


def _write(folder: Path, weights: dict[str, Tensor], config: str) -> None:
    (folder / "config.json").write_text(config, encoding="utf-8")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    # safetensors makes files that only their owner may read.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
