"""The calls and methods that users of transformers type first, on every model.

Not part of the network itself: they translate names, and lead to `bertcli.load` and `bertcli.save`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bertcli.errors import UsageError
from bertcli.models.config import BertConfig

if TYPE_CHECKING:
    from typing_extensions import Self

NAMES = {"input_ids": "ids", "attention_mask": "keep", "token_type_ids": "types"}
INSTEAD = {  # of arguments of transformers' models
    "return_dict": "a model returns a tensor, the last hidden states or the logits",
    "output_hidden_states": "[*model.states(ids, keep, types)] are those of all layers",
    "output_attentions": "maps = []; model(ids, kernels=Recording(maps, keep)) records them",
    "labels": "torch.nn.functional.cross_entropy makes a loss of the logits",
}
WORDS = (  # parameters with a row for each word
    "word_embeddings.weight",
    "predictions.bias",
    "predictions.decoder.weight",
    "predictions.decoder.bias",
)


class Network(nn.Module):
    """What all models have: the calls and methods of transformers' models."""

    config: BertConfig

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Call `forward`, whose arguments may have the names that transformers gives them.

        UsageError for an argument of transformers' models that is not possible here.
        """
        for name in named.keys() & INSTEAD.keys():
            raise UsageError(f"{name} is not an argument of a model", INSTEAD[name])
        return super().__call__(*inputs, **{NAMES.get(n, n): value for n, value in named.items()})

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> Self:
        """Return the model of this class in a folder or of a name; options as in `bertcli.load`."""
        import bertcli

        model: Self = bertcli.load(name, cls, **options)[0]  # type: ignore[type-var]
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files of the model, as `bertcli.save` does."""
        import bertcli

        bertcli.save(self, self.config, folder)  # type: ignore[arg-type]

    def num_parameters(self, only_trainable: bool = False) -> int:
        """Return the number of weights, tied ones once."""
        return sum(x.numel() for x in self.parameters() if x.requires_grad or not only_trainable)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the word embeddings."""
        bert: Any = getattr(self, "bert", self)
        words: nn.Embedding = bert.embeddings.word_embeddings
        return words

    @torch.no_grad()
    def resize_token_embeddings(self, size: int) -> nn.Embedding:
        """Give the vocabulary this size; new rows are drawn at random, as before training."""
        bert: Any = getattr(self, "bert", self)
        for path, weight in list(self.named_parameters(remove_duplicate=False)):
            owner, _, name = path.rpartition(".")
            if path.endswith(WORDS):
                grown = weight.new_zeros(size, *weight.shape[1:])
                if weight.ndim > 1:
                    grown.normal_(std=self.config.initializer_range)
                grown[: len(weight)] = weight[:size]
                setattr(self.get_submodule(owner), name, nn.Parameter(grown))
        bert.config = replace(bert.config, vocab_size=size)
        self.tie()
        words = self.get_input_embeddings()
        words.num_embeddings = size
        return words

    def tie(self) -> None:
        """Tie weights again that are one, after they were replaced."""
