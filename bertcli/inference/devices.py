"""Where and in which number format torch runs a model, and the way of numbers to a GPU and back.

What goes to a GPU or comes from it lies in pinned memory, of which torch keeps a block for each
copy that is under way, and uses it again. Vectors come back on a stream of their own, while the
next batch runs. The kernel for packed texts proves itself on a GPU before it is used there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertcli.errors import BertcliError, UsageError, out_of_memory
from bertcli.inference.compute import cpu_flags, several
from bertcli.inference.progress import SILENCE, Tell
from bertcli.inference.runner import Arriving
from bertcli.models.attention import Varlen, packed, varlen
from bertcli.models.bert import BertModel
from bertcli.models.positions import NoDistance

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def available() -> list[str]:
    """Return the names of the devices that are here, the fastest kind first."""
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    if torch.xpu.is_available():
        names += [f"xpu:{index}" for index in range(torch.xpu.device_count())]
    return [*names, "cpu"]


def devices(names: str) -> list[torch.device]:
    """Return the devices that ``--device`` names: auto, or a list like ``cuda:0,cuda:1``.

    ``auto`` and a kind without a number are its first device, ``cuda:all`` is every one of a kind.
    A device may be named twice. Raises UsageError for one that is not there.
    """
    here = available()
    if names == "auto":
        return [torch.device(here[0])]
    places: list[torch.device] = []
    for name in names.split(","):
        kind, _, number = name.partition(":")
        if number == "all" and (every := [name for name in here if name.partition(":")[0] == kind]):
            places += map(torch.device, every)
            continue
        whole = name if name in here else f"{name}:0"
        if whole not in here:
            raise UsageError(
                f"device {name!r} not found", f"available for --device: {', '.join(here)}"
            )
        places.append(torch.device(whole))
    return places


def put(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device. Raises BertcliError when there is no room for it."""
    try:
        model.to(device)
    except (RuntimeError, MemoryError) as failed:
        if not out_of_memory(failed):
            raise
        raise BertcliError(
            f"out of memory on {device}: the model itself does not fit",
            "use another --device, --dtype bfloat16, or a smaller model",
        ) from None


def dtype_of(name: str) -> torch.dtype:
    """Return the number format of the computation; auto is float32."""
    return DTYPES["float32" if name == "auto" else name]


def slow(dtype: torch.dtype, device: torch.device) -> str:
    """Return why a format is slow on a device; an empty string when it is not."""
    if device.type != "cpu":
        return ""
    if dtype == torch.float16:
        return "float16 is slow on a CPU; bfloat16 may be faster"
    flags = cpu_flags()
    if dtype == torch.bfloat16 and flags and not flags & {"avx512_bf16", "amx_bf16"}:
        return "this CPU has no bfloat16 arithmetic: expect it to be slower than float32"
    return ""


def refuse_several(names: str, instead: str) -> None:
    """Raise UsageError where one device computes and a list is named."""
    if len(devices(names)) > 1:
        raise several(names, instead)


def use_threads(count: int | None) -> int:
    """Set the number of threads of one operation and return it; None leaves torch's choice."""
    if count is not None:
        torch.set_num_threads(count)
    return torch.get_num_threads()


class Wire:
    """The way to a device and back."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.pinned = device, device.type == "cuda"

    @cached_property
    def stream(self) -> Any:
        """The stream on which results come back."""
        return torch.cuda.Stream(self.device)

    def there(self, array: np.ndarray) -> Tensor:
        """Return an array as a tensor on the device. The array may be changed at once."""
        here = torch.from_numpy(array)
        if not self.pinned:
            return here.to(self.device)
        return here.pin_memory().to(self.device, non_blocking=True)

    def back(self, vectors: Tensor | Sequence[Tensor]) -> Arriving:
        """Begin to fetch vectors, or those of each text; what is returned waits for them."""
        if isinstance(vectors, Tensor):
            return self._fetched(vectors)
        ends = np.cumsum([len(vector) for vector in vectors])[:-1]
        arriving = self._fetched(torch.cat(list(vectors)))
        # copied: a view would hold the pinned memory of the whole batch
        return lambda: [part.copy() for part in np.split(arriving(), ends)]

    def _fetched(self, vectors: Tensor) -> Callable[[], np.ndarray]:
        # NumPy has no bfloat16, and nobody wants float16.
        wide = vectors if vectors.element_size() >= 4 else vectors.float()
        if not self.pinned:
            array: np.ndarray = wide.cpu().numpy()
            return lambda: array
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            here = torch.empty(wide.shape, dtype=wide.dtype, pin_memory=True)
            here.copy_(wide, non_blocking=True)
            done = self.stream.record_event()
        wide.record_stream(self.stream)

        def arrived() -> np.ndarray:
            done.synchronize()
            array: np.ndarray = here.numpy()
            return array

        return arrived


TRIED = (1, 2, 17, 64, 129, 3, 300)  # tokens of the texts that are tried


def varlen_kernel(model: BertModel, device: torch.device, tell: Tell = SILENCE) -> Varlen | None:
    """Return torch's kernel for packed texts; None, which `tell` hears of, where it is not fit."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        reason = f"torch {torch.__version__} does not have it"
    else:
        reason = unfit(model, device, cast("Varlen", varlen_attn))
        if not reason:
            tell.detail("attention: varlen, without padding")
            return cast("Varlen", varlen_attn)  # which returns more only where that is asked for
    tell.detail(f"attention: padded ({reason})")
    return None


def unfit(model: BertModel, device: torch.device, run: Varlen) -> str:
    """Return why a kernel cannot run this model on this device; "" when it can.

    It is tried on a small batch, and has to give what the padded path gives.
    """
    config, dtype = model.config, model.embeddings.word_embeddings.weight.dtype
    if dtype.itemsize != 2:
        return f"varlen computes in half precision, not in {str(dtype)[6:]}"
    layers = [layer.attention.self.distance_embedding for layer in model.encoder.layer]
    if config.is_decoder or any(type(distance) is not NoDistance for distance in layers):
        return "varlen cannot add to the scores"
    heads = {config.heads(at) for at in range(len(layers))}  # fewer where some are pruned
    try:
        apart = [_difference(run, count, config.head_size, dtype, device) for count in heads]
    except (RuntimeError, ValueError, TypeError) as failed:
        return f"varlen failed: {str(failed).partition(chr(10))[0]}"
    if not all(difference < 8 * torch.finfo(dtype).eps for difference in apart):
        return f"varlen differs from it by {max(apart):.2g}"
    return ""


@torch.inference_mode()
def _difference(
    run: Varlen, heads: int, size: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return how far a kernel is from the padded path.

    Random queries, keys and values: what a text sees of another one changes its own a lot.
    """
    bounds = torch.tensor([0, *accumulate(TRIED)], dtype=torch.int32, device=device)
    draw = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, sum(TRIED), heads, size, generator=draw).to(device, dtype)
    ours = varlen(bounds, max(TRIED), run)(q, k, v, NoDistance(), 0.0)
    expected = packed(TRIED)(q, k, v, NoDistance(), 0.0)
    return float((ours.float() - expected.float()).abs().max())
