"""Load a model from a folder, strictly and with a report; save a model as transformers loads it.

    model, report = load("bert-base-uncased")   # a folder
    save(model, model.config, "mine")

No tensor is initialised at random, except in a fresh head: each comes from the files, or `load`
fails with the names of the missing tensors. names.py has the old names, tensors.py the file
formats; weights.py compares the weights with a class and describes mismatches.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import TypeVar  # torch needs it as well

from bertcli.errors import ModelError
from bertcli.families.family import BASE
from bertcli.formats.safetensors import StoredTensor, write_arrays
from bertcli.io.publish import saving_files
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.shapes import expected_shapes
from bertcli.model_folder.tensors import map_bits
from bertcli.model_folder.weights import LoadReport, report_on
from bertcli.models.bert import BertModel
from bertcli.models.config import BertConfig
from bertcli.models.heads import ARCHITECTURES, BertWithHead
from bertcli.models.initial_weights import initialise_weight

Model: TypeAlias = BertModel | BertWithHead
M = TypeVar("M", bound=Model, default=Model)  # the class of the loaded model
Device: TypeAlias = torch.device | str


# --- loading ---


def load(
    folder: ModelFolder | str | Path,
    cls: type[M] | None = None,
    *,
    pooler: bool | None = None,
    device: Device = "cpu",
    dtype: torch.dtype | None = None,
    fresh: bool = False,
    labels: Sequence[str] = (),
) -> tuple[M, LoadReport]:
    """Load the model of a folder, in eval mode, with a report of the folder's tensors.

    The default class is the one that config.json lists first. `pooler` is for BertModel: by default
    the model has one if there are weights for it. `dtype` is by default the dtype of the files, the
    widest if there are several. On a CPU the weights stay memory-mapped until they are used. Raises
    ModelError, with file and tensors, unless every tensor of the model is present in its shape.

    A `fresh` head is for training: tensors of the head that the folder lacks, or has for another
    number of `labels`, are initialised at random; `report.fresh` lists them.
    """
    architecture = None if cls is None else cls.__name__
    report = report_on(ModelFolder.open(folder), architecture, pooler, labels)
    if fresh:
        report = report.with_fresh_head()
    report.refuse()  # before building a model of sizes that the files lack
    model: Any = _without_weights(report, cls)
    if dtype is None:
        dtype = getattr(torch, report.dtype)
    _fill(model, report, torch.device(device), dtype)
    return model.eval(), replace(report, dtype=str(dtype).removeprefix("torch."))


def _without_weights(report: LoadReport, cls: type[Any] | None) -> Model:
    """Return a model on `meta`, of the class in the report or a subclass of it."""
    model_class: Any = cls or ARCHITECTURES[report.model]
    options = {"pooler": report.pooler} if issubclass(model_class, BertModel) else {}
    try:
        with torch.device("meta"), _SkipInitialisation():
            model: Model = model_class(report.config, **options)
    except ModelError as bad:  # that error does not name the file
        raise ModelError(
            f"{report.model_folder.config_file}: {bad.marked}", bad.marked_hint
        ) from None
    return model


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation, which on `meta` would import sympy (2 s)."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, unless it draws random numbers."""
        keywords = dict(kwargs or {})
        if func is nn.init.normal_:
            return keywords["tensor"]
        if func is torch.randn:
            return torch.empty(*args, **keywords)
        return func(*args, **keywords)


def _canonical_prefix(model: Model) -> str:
    """Return what a canonical name has before the model's name of the same tensor."""
    return "" if isinstance(model, BertWithHead) else BASE


def _fill(model: Model, report: LoadReport, device: torch.device, dtype: torch.dtype) -> None:
    """Give each parameter of a model the numbers of its stored tensor, or fresh ones."""

    @functools.cache  # reads a tensor with two names once
    def read(stored: StoredTensor) -> Tensor:
        aligned = np.require(map_bits(stored, report.mapped_files), None, "A")
        tensor = torch.from_numpy(aligned)
        if stored.dtype == "BF16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.to(device, dtype)

    state = {}
    for name in model.state_dict():
        canonical = _canonical_prefix(model) + name
        if canonical in report.fresh:
            weight = torch.empty(model.get_parameter(name).shape)
            initialise_weight(name, weight, model.config.initializer_range)
            state[name] = weight.to(device=device, dtype=dtype)
            continue
        stored = report.used[canonical]
        state[name] = read(stored)
        has_twin = stored is not report.stored.get(canonical)  # the tensor has the twin's name
        if has_twin and not model.config.tie_word_embeddings:
            state[name] = state[name].clone()  # two separate parameters
    model.load_state_dict(state, strict=True, assign=True)
    if isinstance(model, BertWithHead):
        model.tie()  # assign=True gave each name its own parameter


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file that is known to be complete, copied, not mapped."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


# --- saving ---


def save(model: Model, config: BertConfig, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which transformers can load as well.

    A tied weight is written once, under the name that transformers uses. Each file is written
    atomically, the config last: a folder from an interrupted save does not load. Raises ValueError
    if `config` does not describe the model, OutputError if the folder is not writable.
    """
    weights = _saved_weights(model)
    pooler = not isinstance(model, BertModel) or model.pooler is not None
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    if expected_shapes(config, type(model).__name__, pooler) != shapes:
        raise ValueError("the config does not describe the tensors of this model")
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    other = {key: value for key, value in config.other.items() if key != "torch_dtype"}
    other["dtype"] = dtype
    architectures = (type(model).__name__,)
    saved_config = replace(config, architectures=architectures, other=other)
    config_json = saved_config.to_json()
    with saving_files(Path(folder), last="config.json") as scratch:
        (scratch / "config.json").write_text(config_json, encoding="utf-8")
        save_tensors(scratch / "model.safetensors", weights)


def _saved_weights(model: Model) -> dict[str, Tensor]:
    """Return the weights under the names of transformers, stacked where it stacks them."""
    family = model.config.family
    architecture = type(model).__name__
    prefix = _canonical_prefix(model)
    weights = {prefix + name: weight.detach() for name, weight in model.named_parameters()}
    saved: dict[str, Tensor] = {}
    for name, weight in weights.items():
        their_name = family.their_name(name, architecture)
        if their_name in saved:
            continue
        our_names = family.our_names(their_name, architecture)
        stacked = [weights[our_name] for our_name in our_names if our_name in weights]
        saved[their_name] = torch.cat(stacked) if len(stacked) > 1 else weight
    return saved


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as a safetensors file."""
    bfloat16_names = []
    arrays = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # NumPy has no such dtype
            bfloat16_names.append(name)
            tensor = tensor.view(torch.int16)
        arrays[name] = tensor.numpy()
    with path.open("wb") as file:
        write_arrays(file, arrays, bfloat16_names)
