"""Attention maps of one text: the model runs with the recording kernel, as far as is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bertcli.errors import ModelError
from bertcli.models.attention import recording
from bertcli.models.bert import BertModel


@torch.no_grad()
def attention_maps(
    model: BertModel, ids: Sequence[int], types: Sequence[int], layers: int
) -> list[Any]:
    """Return the maps of the first `layers` layers, each a numpy array [H, L, L].

    ModelError for a model that takes more than ids, or fewer tokens, or whose maps are not finite.
    """
    if model.embeddings.extra:
        named = ", ".join(model.embeddings.extra)
        raise ModelError(f"this model also needs {named} for each token, which a text does not say")
    if len(ids) > model.config.max_position_embeddings:
        places = model.config.max_position_embeddings
        raise ModelError(f"{len(ids)} tokens, and the model has {places} positions")
    maps: list[torch.Tensor] = []
    kernel = model.direction(recording(maps))
    states = model.states(torch.tensor([ids]), types=torch.tensor([types]), kernels=kernel)
    for _ in range(layers + 1):  # the first state is the embeddings
        next(states)
    for layer, one in enumerate(maps):
        if not one.isfinite().all():
            raise ModelError(
                f"the attention of layer {layer} is not finite: the weights are spoiled",
                hint="bertcli inspect --verify",
            )
    return [one[0].float().numpy() for one in maps]
