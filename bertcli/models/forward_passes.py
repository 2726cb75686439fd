"""Other ways to run a BertModel: with its attention recorded, and step by step.

Letters as in attention.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bertcli.errors import ModelError
from bertcli.models.attention import Recording, cached, causal, masked
from bertcli.models.bert import BertModel, CrossAttentionMemory


def mean_states(states: Tensor, lengths: Sequence[int]) -> Tensor:
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
    """Return the attention maps of a text in the first `layers` layers, NumPy arrays [H, L, L].

    `extra` has the ids of extra embeddings by their names. Raises ModelError for maps that are not
    finite.
    """
    maps: list[torch.Tensor] = []
    kernel = model.direction(Recording(maps))
    extra_ids = {name: torch.tensor([column]) for name, column in extra.items()}
    states = model.states(
        torch.tensor([ids]), types=torch.tensor([types]), extra=extra_ids, kernels=kernel
    )
    for _ in range(layers + 1):  # the first state is the embeddings; others run one layer each
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
    """A batch of growing texts: each call takes the next tokens and returns their hidden states.

    Keys and values of past tokens are cached per layer, so each token is computed once. One call
    with all tokens returns the same as many calls with some of them.
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
        """Return the hidden states [B, L, hidden] of the next tokens, ids [B, L].

        `keep` includes the past tokens: [B, past + L], 0 for padding, or [B, L, past + L].
        """
        end = self.length + ids.shape[1]
        if at is None:
            at = torch.arange(self.length, end, device=ids.device)
        kernel = masked(keep, causal)
        kernels = [cached(kernel, past, past) for past in self.pasts]
        self.length = end
        return self.model.hidden(ids, None, types, at, kernels=kernels, memories=self.memories)
