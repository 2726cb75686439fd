"""A model that torch runs: the engine, the devices there are, and the network alone (`load`).

A batch is padded, of texts of similar length; on a GPU whose kernel takes that, it is packed,
without padding. In both cases what comes out is packed: the states of all tokens, one text after
the other, `[T, D]`. What goes to a GPU or comes from it lies in pinned memory, and is waited for
only where it is read: the next batch runs in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.engines.compute import Backend
from bertcli.engines.engine import Arriving, Engine, Finish, ModelSpec, Reading, Tokens, combined
from bertcli.errors import LOG, ModelError, UsageError, option
from bertcli.model_folder import load as checkpoint
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.model_folder.load import M
from bertcli.model_folder.weights import NO_HEAD, LoadReport
from bertcli.models.activation_layer import gelu_of_linear
from bertcli.models.attention import SHORT, Attend, varlen
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import means
from bertcli.models.heads import ARCHITECTURES, BertWithHead
from bertcli.models.positions import Distance
from bertcli.versions import pip_command

CUDA_WHEELS = "https://download.pytorch.org/whl/cu128"


def load(
    name: str | Path = DEFAULT_MODEL,
    cls: type[M] | None = None,
    *,
    revision: str | None = None,
    offline: bool = False,
    **options: Any,
) -> tuple[M, LoadReport]:
    """Load the model of a folder, or of a name as in `find_model`, in eval mode, with a report.

    The class is the one that its config.json names first, or ``cls``. The options (pooler, device,
    dtype, fresh, labels) and the errors are those of `bertcli.model_folder.load.load`.
    """
    folder = Path(name).expanduser()
    if isinstance(name, str) and not folder.is_dir():
        folder = find_model(name, files=MODEL_FILES, revision=revision, offline=offline).path
    try:
        return checkpoint.load(folder, cls, **options)
    except ModelError as failed:
        if failed.marked_hint != NO_HEAD:
            raise
        line = "write fresh=True for a head drawn at random, or num_labels=2 in from_pretrained"
        raise ModelError(f"{failed.marked}; {line}", f"{NO_HEAD}; {line}") from None


def tensors_of(vectors: Any) -> Any:
    """Return an array, or each of a list of arrays, as a tensor; weights of terms as they are."""
    if isinstance(vectors, np.ndarray):
        return torch.from_numpy(vectors)
    return [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in vectors]


# --- where and in which number format torch computes ---


def available() -> list[str]:
    """Return the names of the devices that are here, the fastest kind first."""
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    names += ["mps"] * torch.backends.mps.is_available()
    names += [f"xpu:{index}" for index in range(torch.xpu.device_count())]
    return [*names, "cpu"]


def devices(names: str) -> list[torch.device]:
    """Return the devices that ``--device`` names: auto, or a list like ``cuda:0,cuda:1``.

    ``auto`` and a kind without a number are its first device, ``cuda:all`` is every one of a kind.
    A device may be named twice. Raises UsageError for one that is not there.
    """
    here = available()
    places: list[torch.device] = []
    for name in (here[0] if names == "auto" else names).split(","):
        kind, _, number = name.partition(":")
        named = [place for place in (name, f"{name}:0") if place in here][:1]
        if number == "all":
            named = [place for place in here if place.partition(":")[0] == kind]
        if not named:
            raise _missing(name, here)
        places += map(torch.device, named)
    return places


def _missing(name: str, here: Sequence[str]) -> UsageError:
    """Return the error for a device that is not among those that are here."""
    hint = f"available for {option('device')}: {', '.join(here)}"
    without_cuda = torch.version.cuda is None and torch.version.hip is None
    if name.startswith("cuda") and without_cuda and not any(x.startswith("cuda") for x in here):
        message = f"device {name!r} not found: this torch was built without CUDA"
        if not torch.backends.mps.is_built():  # CUDA is not made for Macs
            hint = f"{pip_command()} --force-reinstall torch --index-url {CUDA_WHEELS}; {hint}"
        return UsageError(message, hint)
    return UsageError(f"device {name!r} not found", hint)


def dtype_of(name: str) -> torch.dtype:
    """Return the number format of the computation; auto is float32."""
    return getattr(torch, "float32" if name == "auto" else name)


def slow(dtype: torch.dtype, device: torch.device) -> str:
    """Return why a format is slow on a device; an empty string when it is not."""
    half = device.type == "cpu" and dtype.itemsize < 4
    return "half precision may be slower than float32 on a CPU" if half else ""


def use_threads(count: int | None) -> int:
    """Set the number of threads of one operation and return it; None leaves torch's choice."""
    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()


# --- the engine ---


class Encoder(Engine):
    """A model on a device."""

    backend: Backend = "torch"
    same_bits = False

    def __init__(
        self,
        model: BertModel | BertWithHead,
        reading: Reading,
        device: torch.device,
    ) -> None:
        """Take a model that is on the device."""
        self.model, self.reading, self.device = model.eval(), reading, device
        self.bert = model.bert if isinstance(model, BertWithHead) else model
        self.config, self.on_cuda = self.bert.config, device.type == "cuda"
        self.varlen = varlen_kernel(self.bert, device)
        self.depth = 1 + self.on_cuda
        self.layers = reading.indices(self.config.num_hidden_layers)

    @torch.inference_mode()
    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Give a batch to the device, and return what waits for its vectors."""
        reading = self.reading
        states, tokens = self._states(batch)
        of_layers = {
            layer: state.flatten(0, -2)[tokens]
            for layer, state in enumerate(islice(states, max(self.layers) + 1))
            if layer in self.layers
        }
        x = combined([of_layers[layer] for layer in self.layers], reading.combine)
        if reading.mean:
            x = means(x, batch.lengths.tolist())
        elif reading.first or reading.token is not None:
            x = x[self._there(reading.places(batch))]
        return self._back(finish(self.model, x, reading.counts(batch)))

    def _states(self, batch: Tokens) -> tuple[Iterator[Tensor], Any]:
        """Return the states of each layer and the index of the tokens in them.

        They are [T, hidden] where the kernel takes packed texts, else [B, L, hidden].
        """
        longest, keep, at, kernel = int(batch.lengths.max()), None, None, None
        tokens: Any = ...
        if self.varlen and batch.all_attended:
            columns, at = batch.columns.T.astype(np.int64, "C"), self._there(batch.places)
            kernel = self.varlen(self._there(batch.offsets.astype(np.int32)), longest)
        else:
            columns, places, attended = self.reading.padded(batch, longest)
            keep = None if attended.all() else self._there(attended)
            tokens = self._there(places)  # the mask itself would have to be waited for
        ids, types, *others = self._there(columns)
        extra = dict(zip(batch.extra, others, strict=True))
        return self.bert.states(ids, keep, types, at, extra, kernel), tokens

    def _there(self, array: np.ndarray) -> Tensor:
        """Return an array as a tensor on the device. The array may be changed at once."""
        tensor = torch.from_numpy(array)
        return (tensor.pin_memory() if self.on_cuda else tensor).to(self.device, non_blocking=True)

    def _back(self, vectors: Tensor | Sequence[Tensor]) -> Arriving:
        """Begin to fetch vectors, or those of each text; what is returned waits for them."""
        whole = vectors if isinstance(vectors, Tensor) else torch.cat(list(vectors))
        # NumPy has no bfloat16, and nobody wants float16; pinned, where it is not waited for.
        here = whole.float().to("cpu", non_blocking=self.on_cuda)
        done = torch.cuda.current_stream(self.device).record_event() if self.on_cuda else None

        def arrived() -> np.ndarray | list[np.ndarray]:
            if done:
                done.synchronize()
            if isinstance(vectors, Tensor):
                return here.numpy()
            ends = np.cumsum([len(vector) for vector in vectors])[:-1]
            # copied: a view would hold the pinned memory of the whole batch
            return [part.copy() for part in np.split(here.numpy(), ends)]

        return arrived

    def facts(self) -> dict[str, Any]:
        """Return what decides the numbers; devices of a kind give the same."""
        return {
            "backend": self.backend,
            "dtype": str(self.bert.embeddings.word_embeddings.weight.dtype)[6:],
            "kernel": "packed" if self.varlen else "padded",
            "device": self.device.type,
            # where they compute: the last bits of a sum depend on them
            "threads": self.threads if self.device.type == "cpu" else None,
            "batch_tokens": self.budget,
        }


def open_torch(spec: ModelSpec) -> Encoder:
    """Load a model onto a device, the first of those that are named.

    Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
    choice that this model or this machine cannot follow.
    """
    compute, threads = spec.compute, use_threads(spec.compute.threads)
    places, dtype = devices(compute.device), dtype_of(compute.dtype)
    device = places[0]
    if message := slow(dtype, device):
        LOG.warn(message)
    kind = ARCHITECTURES[spec.kind]
    model, _ = checkpoint.load(spec.folder, kind, pooler=spec.pooler, device=device, dtype=dtype)
    encoder = Encoder(model, spec.reading, device)
    encoder.places, encoder.threads = tuple(map(str, places)), threads
    if encoder.on_cuda and dtype == torch.bfloat16:
        fuse_gelu(encoder.bert)
    # Few enough for a CPU's cache, or many for a GPU.
    encoder.budget = compute.batch_tokens or (4096 if device.type == "cpu" else 1 << 16)
    return encoder


def fuse_gelu(model: BertModel) -> None:
    """Have GELU computed within the product before it, which saves a pass over memory.

    The tanh approximation is less exact than float16, and costs bfloat16 next to nothing.
    """
    for layer in model.encoder.layer:
        inner = layer.intermediate
        function = getattr(inner.intermediate_act_fn, "function", None)
        if inner.gate is None and function is F.gelu:
            inner.forward = partial(gelu_of_linear, inner.dense)


def varlen_kernel(model: BertModel, device: torch.device) -> Callable[[Tensor, int], Attend] | None:
    """Return what makes the kernel for packed texts; None where it cannot run this model.

    It computes in half precision, and cannot add to the scores.
    """
    dtype = model.embeddings.word_embeddings.weight.dtype
    blocks = (layer.attention.self for layer in model.encoder.layer)
    plain = all(type(block.distance_embedding) is Distance for block in blocks)
    if dtype.itemsize != 2 or model.config.is_decoder or not plain:
        return None
    x = torch.zeros(1, 1, model.config.head_size, dtype=dtype, device=device)
    bounds = torch.arange(2, dtype=torch.int32, device=device)
    try:
        for longest in (SHORT, SHORT + 1):
            varlen(bounds, longest)(x, x, x, Distance(), 0.0)
    except (AttributeError, RuntimeError):  # this torch, or this device, has none
        return None
    return varlen
