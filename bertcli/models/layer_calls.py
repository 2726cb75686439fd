"""Ways to call a part of the model: the result is the same, memory and time are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Call: TypeAlias = Callable[..., Tensor]  # (part, its arguments) -> its result


def directly(part: Call, *inputs: object) -> Tensor:
    """Call a part of the model as it is."""
    return part(*inputs)


def chunked(size: int, part: Call, x: Tensor) -> Tensor:
    """Call a part on `size` tokens at a time: less memory, the same result."""
    return torch.cat([part(some) for some in x.split(size, dim=-2)], dim=-2)


def recomputing(part: Call, *inputs: object) -> Tensor:
    """Call a part without keeping what its gradient needs: that is computed again when needed.

    Source: Training Deep Nets with Sublinear Memory Cost, known as gradient checkpointing.
    """
    result: Tensor = checkpoint(part, *inputs, use_reentrant=False)
    return result
