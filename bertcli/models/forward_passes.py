"""Other ways to run a BertModel: over a batch without padding, and with its attention recorded.

In a packed batch the texts are concatenated in one row of `T` tokens. Everything but attention
treats each token alone, so only the kernel and the positions need to know where a text ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bertcli.errors import ModelError
from bertcli.models.attention import Recording, packed
from bertcli.models.bert import BertModel


def positions(lengths: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return the position ids of all texts, each from 0, [T]."""
    sizes = torch.tensor(lengths, device=device)
    firsts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return torch.arange(len(firsts), device=device) - firsts


def means(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the mean state of each text [n, hidden], of the states [T, hidden] of all."""
    return torch.stack([text.mean(0) for text in states.split(lengths)])


def encode(
    model: BertModel,
    ids: Tensor,
    lengths: Sequence[int],
    types: Tensor | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Return the last hidden states [T, hidden] of ids [T]; ValueError unless lengths add up to T.

    `hidden.split(lengths)` are the texts. Fastest when texts of equal length are neighbours.
    """
    if sum(lengths) != ids.shape[0]:
        raise ValueError(f"lengths add up to {sum(lengths)}, but there are {ids.shape[0]} tokens")
    at = positions(lengths, ids.device)
    kernel = model.direction(packed(lengths))
    return model(ids, types=types, at=at, extra=extra, kernels=kernel)


@torch.no_grad()
def attention_maps(
    model: BertModel,
    ids: Sequence[int],
    types: Sequence[int],
    layers: int,
    extra: Mapping[str, Sequence[int]] | None = None,
) -> list[Any]:
    """Return the maps of the first `layers` layers, each a numpy array [H, L, L].

    ModelError for too many tokens, or maps that are not finite.
    """
    if len(ids) > model.config.most_tokens:
        places = model.config.most_tokens
        raise ModelError(f"{len(ids)} tokens, but the model has {places} positions")
    maps: list[torch.Tensor] = []
    kernel = model.direction(Recording(maps))
    also = {name: torch.tensor([column]) for name, column in (extra or {}).items()}
    tokens = torch.tensor([ids]), torch.tensor([types])
    states = model.states(tokens[0], types=tokens[1], extra=also, kernels=kernel)
    for _ in range(layers + 1):  # the first state is the embeddings
        next(states)
    for layer, attention in enumerate(maps):
        if not attention.isfinite().all():
            raise ModelError(
                f"attention of layer {layer} is not finite: the weights contain NaN or infinity",
                hint="bertcli inspect --verify",
            )
    return [attention[0].float().numpy() for attention in maps]
