"""Weights as whole numbers, each rounded so that it makes up for the errors of those before it.

Source: Frantar et al. 2022, GPTQ; in the form of Babai's nearest plane, which needs no inverse
(Chen et al. 2025, The Geometry of LLM Quantization). Letters as in attention.py.
"""

import torch
from torch import Tensor

GROUP = 512  # inputs that make up for each other; more take longer and bring nothing
BLOCK = 16  # inputs whose errors reach the others together
DAMPING = 1.0  # of the mean size of inputs: how little is learnt of a small sample
TINY = 1e-12  # inputs of zeros have a size too


def rounded(weight: Tensor, inputs: Tensor, reach: float) -> Tensor:
    """Return whole numbers up to ``reach`` for a weight [out, in], given in steps.

    Of all roundings, these are near the one whose products with ``inputs`` [n, in], a sample, err
    least. The inputs that matter most are rounded first, and have the most others to mend them.
    """
    sizes = inputs.square().sum(0)
    damping = float(sizes.mean()) * DAMPING + TINY
    made = torch.empty_like(weight)
    for some in sizes.argsort(descending=True).split(GROUP):
        seen = inputs[:, some]
        gram = seen.T @ seen
        gram.diagonal().add_(damping)
        made[:, some] = _nearest(weight[:, some].T, gram, reach).T
    return made


def _nearest(weight: Tensor, gram: Tensor, reach: float) -> Tensor:
    """Round [in, out], the first row first, where products err by ``gram`` [in, in]."""
    # With the last row first, no inverse is needed.
    upper = torch.linalg.cholesky(gram.flip(0, 1), upper=True)
    upper = upper / upper.diagonal()[:, None]
    aim, errors = weight.flip(0), weight.flip(0)
    for end in range(len(aim), 0, -BLOCK):
        block = slice(max(0, end - BLOCK), end)
        some, left, own = aim[block], errors[block], upper[block, block]
        for row in reversed(range(len(some))):
            after = slice(row + 1, None)
            number = some[row].addmv_(left[after].T, own[row, after])
            left[row].sub_(number.round_().clamp_(-reach, reach))
        aim[: block.start].addmm_(upper[: block.start, block], left)
    return aim.flip(0)
