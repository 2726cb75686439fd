"""Numbers to a device and back, beside its work: nobody waits for a copy but who needs its result.

What goes to a GPU or comes from it lies in pinned memory, of which torch keeps a block for each
copy that is under way, and uses it again. Vectors come back on a stream of their own, while the
next batch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertcli.inference.runner import Kept

Arriving = Callable[[], Kept]  # waits for the vectors of a batch, and returns them


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

    def back(self, found: Tensor | Sequence[Tensor]) -> Arriving:
        """Begin to fetch vectors, or those of each text; what is returned waits for them."""
        if not self.pinned:
            kept = _array(found) if isinstance(found, Tensor) else [*map(_array, found)]
            return lambda: kept
        if isinstance(found, Tensor):
            return self._fetched(found)
        ends = np.cumsum([len(one) for one in found])[:-1]
        arriving = self._fetched(torch.cat(list(found)))
        # copied: a view would hold the pinned memory of the whole batch
        return lambda: [part.copy() for part in np.split(np.asarray(arriving()), ends)]

    def _fetched(self, found: Tensor) -> Arriving:
        wide = _widened(found)
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


def _widened(vectors: Tensor) -> Tensor:
    """Return half precision as float32: NumPy has no bfloat16, and nobody wants float16."""
    return vectors if vectors.element_size() >= 4 else vectors.float()


def _array(vectors: Tensor) -> np.ndarray:
    array: np.ndarray = _widened(vectors).cpu().numpy()
    return array
