"""The torch engine; the devices of torch; and `load`, which returns the network alone.

A batch has texts of similar length. It is padded, or, on a GPU with a kernel for that, packed
without padding. The results are packed in both cases: the states of all tokens, text after text,
`[T, D]`. Transfers to and from a GPU use pinned memory and are waited for only when results are
read, so that the next batch runs in the meantime.
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
from bertcli.engines.engine import (
    Engine,
    ModelSpec,
    PackedTokens,
    Reduction,
    StateSelection,
    WaitForOutputs,
    combine_layers,
)
from bertcli.errors import LOG, ModelError, UsageError, option
from bertcli.model_folder import load as checkpoint
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.model_folder.load import M
from bertcli.model_folder.weights import NO_HEAD, LoadReport
from bertcli.models.activation_layer import gelu_of_linear
from bertcli.models.attention import LONGEST_SHORT_TEXT, Attend, varlen
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import mean_states
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
    """Load a model by its folder or its name; return it in eval mode, and a report.

    The class is ``cls``, or the first one that config.json lists. The options (pooler, device,
    dtype, fresh, labels) and the errors are those of `bertcli.model_folder.load.load`.
    """
    folder = Path(name).expanduser()
    if isinstance(name, str) and not folder.is_dir():
        folder = find_model(name, files=MODEL_FILES, revision=revision, offline=offline).path
    try:
        return checkpoint.load(folder, cls, **options)
    except ModelError as error:
        if error.marked_hint != NO_HEAD:
            raise
        line = "write fresh=True for a head drawn at random, or num_labels=2 in from_pretrained"
        raise ModelError(f"{error.marked}; {line}", f"{NO_HEAD}; {line}") from None


def tensors_of(vectors: Any) -> Any:
    """Convert an array, or the arrays in a list, to tensors; term weights stay as they are."""
    if isinstance(vectors, np.ndarray):
        return torch.from_numpy(vectors)
    return [
        torch.from_numpy(vector) if isinstance(vector, np.ndarray) else vector for vector in vectors
    ]


# --- devices and number formats ---


def available_devices() -> list[str]:
    """Return the names of the devices of this machine, the fastest type first."""
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    names += ["mps"] * torch.backends.mps.is_available()
    names += [f"xpu:{index}" for index in range(torch.xpu.device_count())]
    names.append("cpu")
    return names


def devices(names: str) -> list[torch.device]:
    """Return the devices of ``--device``: auto, or a list like ``cuda:0,cuda:1``.

    ``auto`` is the first device; a type without a number is the first device of the type;
    ``cuda:all`` is all of a type. A device may be given twice. Raises UsageError for a device that
    this machine lacks.
    """
    available = available_devices()
    if names == "auto":
        names = available[0]
    selected: list[torch.device] = []
    for name in names.split(","):
        device_type, _, number = name.partition(":")
        if number == "all":
            matches = [device for device in available if device.partition(":")[0] == device_type]
        else:
            matches = [device for device in (name, f"{name}:0") if device in available][:1]
        if not matches:
            raise _missing_device(name, available)
        selected += map(torch.device, matches)
    return selected


def _missing_device(name: str, available: Sequence[str]) -> UsageError:
    """Return the error for a device that is not available."""
    hint = f"available for {option('device')}: {', '.join(available)}"
    without_cuda = torch.version.cuda is None and torch.version.hip is None
    has_cuda_device = any(device.startswith("cuda") for device in available)
    if name.startswith("cuda") and without_cuda and not has_cuda_device:
        message = f"device {name!r} not found: this torch was built without CUDA"
        if not torch.backends.mps.is_built():  # there is no CUDA for Macs
            hint = f"{pip_command()} --force-reinstall torch --index-url {CUDA_WHEELS}; {hint}"
        return UsageError(message, hint)
    return UsageError(f"device {name!r} not found", hint)


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of the computation; auto is float32."""
    return getattr(torch, "float32" if name == "auto" else name)


def slow_dtype_warning(dtype: torch.dtype, device: torch.device) -> str:
    """Return a warning if a dtype is slow on a device, else an empty string."""
    if device.type == "cpu" and dtype.itemsize < 4:
        return "half precision may be slower than float32 on a CPU"
    return ""


def use_threads(count: int | None) -> int:
    """Set the number of threads of an operation, unless it is None; return the number in use."""
    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()


# --- the engine ---


class TorchEngine(Engine):
    """A torch model on a device."""

    backend: Backend = "torch"
    same_bits = False

    def __init__(
        self,
        model: BertModel | BertWithHead,
        selection: StateSelection,
        device: torch.device,
    ) -> None:
        """Create the engine of a model that is on the device already."""
        self.model = model.eval()
        self.selection = selection
        self.device = device
        self.bert = model.bert if isinstance(model, BertWithHead) else model
        self.config = self.bert.config
        self.on_cuda = device.type == "cuda"
        self.varlen = varlen_kernel(self.bert, device)
        self.depth = 2 if self.on_cuda else 1  # batches in flight
        self.layers = selection.layer_indices(self.config.num_hidden_layers)

    @torch.inference_mode()
    def start(self, batch: PackedTokens, reduction: Reduction) -> WaitForOutputs:
        """Start a batch on the device; return a function that waits for its results."""
        selection = self.selection
        states, token_indices = self._states(batch)
        layer_states = {}
        for layer, state in enumerate(islice(states, max(self.layers) + 1)):
            if layer in self.layers:
                layer_states[layer] = state.flatten(0, -2)[token_indices]
        x = combine_layers([layer_states[layer] for layer in self.layers], selection.combine)
        if selection.token_mean:
            model: Any = self.model  # with a head
            x = mean_states(model.before_mean(x), batch.lengths.tolist())
        elif not selection.all_tokens:
            x = x[self._to_device(selection.token_indices(batch))]
        return self._fetch(reduction(self.model, x, selection.row_counts(batch)))

    def _states(self, batch: PackedTokens) -> tuple[Iterator[Tensor], Any]:
        """Return the states of each layer, and the index of the tokens in the flattened states.

        States are [T, hidden] if the kernel takes packed texts, else [B, L, hidden].
        """
        longest = int(batch.lengths.max())
        mask = None
        positions = None
        kernel = None
        token_indices: Any = ...
        if self.varlen and batch.all_attended:
            columns = batch.columns.T.astype(np.int64, "C")
            positions = self._to_device(batch.positions)
            kernel = self.varlen(self._to_device(batch.offsets.astype(np.int32)), longest)
        else:
            columns, indices, attended = batch.padded(longest)
            if not attended.all():
                mask = self._to_device(attended)
            # Indexing by the mask would synchronise the device.
            token_indices = self._to_device(indices)
        ids, types, *extra_ids = self._to_device(columns)
        extra = dict(zip(batch.extra_embeddings, extra_ids, strict=True))
        return self.bert.states(ids, mask, types, positions, extra, kernel), token_indices

    def _to_device(self, array: np.ndarray) -> Tensor:
        """Copy an array to the device. The array may be changed immediately."""
        tensor = torch.from_numpy(array)
        if self.on_cuda:
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _fetch(self, vectors: Tensor | Sequence[Tensor]) -> WaitForOutputs:
        """Start to copy vectors, or the vectors of each text, to the CPU as float32.

        Return a function that waits for them.
        """
        all_vectors = vectors if isinstance(vectors, Tensor) else torch.cat(list(vectors))
        # float32, because NumPy lacks bfloat16. A copy that does not block is in pinned memory.
        on_cpu = all_vectors.float().to("cpu", non_blocking=self.on_cuda)
        copied = None
        if self.on_cuda:
            copied = torch.cuda.current_stream(self.device).record_event()

        def wait() -> np.ndarray | list[np.ndarray]:
            if copied:
                copied.synchronize()
            if isinstance(vectors, Tensor):
                return on_cpu.numpy()
            ends = np.cumsum([len(vector) for vector in vectors])[:-1]
            # Copies, because views would keep the pinned memory of the batch.
            return [rows.copy() for rows in np.split(on_cpu.numpy(), ends)]

        return wait

    def facts(self) -> dict[str, Any]:
        """Return the facts that determine the outputs; all devices of a type compute the same."""
        return {
            "backend": self.backend,
            "dtype": str(self.bert.embeddings.word_embeddings.weight.dtype)[6:],
            "kernel": "packed" if self.varlen else "padded",
            "device": self.device.type,
            # on a CPU, the last bits of sums depend on them
            "threads": self.threads if self.device.type == "cpu" else None,
            "batch_tokens": self.budget,
        }


def open_torch(spec: ModelSpec) -> TorchEngine:
    """Load a model onto the first of the selected devices.

    Raises ModelError for a folder without a complete model of this class, UsageError for options
    that the model or the machine does not support.
    """
    compute = spec.compute
    threads = use_threads(compute.threads)
    selected = devices(compute.device)
    dtype = dtype_of(compute.dtype)
    device = selected[0]
    warning = slow_dtype_warning(dtype, device)
    if warning:
        LOG.warn(warning)
    model, _ = checkpoint.load(
        spec.folder,
        ARCHITECTURES[spec.architecture],
        pooler=spec.pooler,
        device=device,
        dtype=dtype,
    )
    engine = TorchEngine(model, spec.selection, device)
    engine.devices = tuple(map(str, selected))
    engine.threads = threads
    if engine.on_cuda and dtype == torch.bfloat16:
        fuse_gelu(engine.bert)
    # Tokens per batch: they fit the cache of a CPU, or keep a GPU busy.
    default_budget = 4096 if device.type == "cpu" else 1 << 16
    engine.budget = compute.batch_tokens or default_budget
    return engine


def fuse_gelu(model: BertModel) -> None:
    """Fuse GELU into the matrix product before it, which saves a pass over memory.

    It is the tanh approximation, whose error is greater than that of float16, and small beside that
    of bfloat16.
    """
    for layer in model.encoder.layer:
        intermediate = layer.intermediate
        function = getattr(intermediate.intermediate_act_fn, "function", None)
        if intermediate.gate is None and function is F.gelu:
            intermediate.forward = partial(gelu_of_linear, intermediate.dense)


def varlen_kernel(model: BertModel, device: torch.device) -> Callable[[Tensor, int], Attend] | None:
    """Return `varlen` if its kernel can run this model on the device, else None.

    The kernel computes in half precision, and supports no bias of the scores.
    """
    dtype = model.embeddings.word_embeddings.weight.dtype
    has_bias = any(
        type(layer.attention.self.distance_embedding) is not Distance
        for layer in model.encoder.layer
    )
    if dtype.itemsize != 2 or model.config.is_decoder or has_bias:
        return None
    x = torch.zeros(1, 1, model.config.head_size, dtype=dtype, device=device)
    bounds = torch.arange(2, dtype=torch.int32, device=device)
    try:
        for longest in (LONGEST_SHORT_TEXT, LONGEST_SHORT_TEXT + 1):
            varlen(bounds, longest)(x, x, x, Distance(), 0.0)
    except (AttributeError, RuntimeError):  # not in this torch, or not on this device
        return None
    return varlen
