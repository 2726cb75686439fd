"""Other ways to run a BertModel: with its attention recorded, and step by step.

A decoder computes each token once: a cache is a kernel around a kernel, one per layer, that puts
past keys and values before the new ones. Letters as in attention.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bertcli.errors import ModelError
from bertcli.models.attention import Recording, cached, causal, masked
from bertcli.models.bert import BertModel, CrossAttentionMemory


def means(states: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the mean state of each text [n, hidden], of the states [T, hidden] of all."""
    return torch.stack([text.mean(0) for text in states.split(lengths)])


@torch.no_grad()
def attention_maps(
    model: BertModel,
    ids: Sequence[int],
    types: Sequence[int],
    layers: int,
    extra: Mapping[str, Sequence[int]],
) -> list[Any]:
    """Return the maps of the first `layers` layers, each a numpy array [H, L, L].

    ModelError for maps that are not finite.
    """
    maps: list[torch.Tensor] = []
    kernel = model.direction(Recording(maps))
    also = {name: torch.tensor([column]) for name, column in extra.items()}
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


# --- one step at a time ---


class Decoder:
    """A batch of texts that grow: new tokens go in, their hidden states come out.

    One call with the whole text is the full pass; many calls with parts of it give the same.
    """

    def __init__(
        self, model: BertModel, memories: list[CrossAttentionMemory] | None = None
    ) -> None:
        self.model = model
        self.memories = memories
        self.pasts: list[list[Tensor]] = [[] for _ in range(model.config.num_hidden_layers)]
        self.length = 0

    def __call__(
        self,
        ids: Tensor,
        keep: Tensor | None = None,
        types: Tensor | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Read the next tokens, ids [B, L], and return their hidden states, [B, L, hidden].

        `keep` covers the past as well: [B, past + L], 0 for padding; or [B, L, past + L].
        """
        end = self.length + ids.shape[1]
        if at is None:
            at = torch.arange(self.length, end, device=ids.device)
        kernel = masked(keep, causal)
        kernels = [cached(kernel, past, past) for past in self.pasts]
        self.length = end
        return self.model.hidden(ids, None, types, at, kernels=kernels, memories=self.memories)
