"""RMSNorm, which newer models have instead of LayerNorm.

Source: Root Mean Square Layer Normalization, equation 4.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Vectors scaled to a root mean square of 1, times a weight per dimension.

    `offset` is added to the weights: models whose weights are distances from 1 have 1.
    """

    def __init__(self, width: int, eps: float, offset: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., width], computed in float32."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (self.weight.float() + self.offset)).to(x.dtype)
