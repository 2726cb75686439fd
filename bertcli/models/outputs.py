"""What calling a model returns: tensors by name, and in order.

    output = model(ids)
    output.last_hidden_state, output["last_hidden_state"], output[0]   # [B, L, hidden]
    last, pooled = model(ids)

Names and order are those of transformers' outputs. What a call does not return is None, and is
counted in no order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

LOSS = "torch.nn.functional.cross_entropy(output.logits.flatten(0, -2), labels.flatten())"


@dataclass(eq=False)
class ModelOutput:
    """Tensors by name, or in order without those that are None.

    Unlike in transformers, iteration yields the tensors, as unpacking needs them, not their names.
    """

    def to_tuple(self) -> tuple[Any, ...]:
        """Return what is not None, in order."""
        return tuple(self.values())

    def keys(self) -> list[str]:
        """Return the names of what is not None."""
        return [entry.name for entry in fields(self) if getattr(self, entry.name) is not None]

    def values(self) -> list[Any]:
        """Return what is not None."""
        return [getattr(self, name) for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """Return the names of what is not None, and the values."""
        return [(name, getattr(self, name)) for name in self.keys()]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self:
                raise KeyError(f"no {key} here; available: {', '.join(self.keys())}")
            return getattr(self, key)
        if isinstance(key, tuple):
            raise TypeError(f"a model returns no tensor: write output.{self.keys()[0]}[...]")
        return self.to_tuple()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __len__(self) -> int:
        return len(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError with what to write instead."""
        if name == "loss":
            raise AttributeError(f"a model computes no loss: write loss = {LOSS}")
        if not name.startswith("_") and hasattr(Tensor, name):
            first = next(entry.name for entry in fields(self))
            raise AttributeError(f"a model returns no tensor: write output.{first}.{name}")
        names = ", ".join(entry.name for entry in fields(self))
        raise AttributeError(f"{type(self).__name__} has no {name!r}, only {names}")


# Keys and values of each layer, each [B, H, L, D].
PastKeyValues = tuple[tuple[Tensor, Tensor], ...]


@dataclass(eq=False)
class EncoderOutput(ModelOutput):
    """What a BertModel returns."""

    last_hidden_state: Tensor  # [B, L, hidden]
    pooler_output: Tensor | None = None  # [B, hidden]
    hidden_states: tuple[Tensor, ...] | None = None  # the embeddings, and each layer's
    past_key_values: PastKeyValues | None = None
    attentions: tuple[Tensor, ...] | None = None  # each layer's [B, H, L, L]
    cross_attentions: tuple[Tensor, ...] | None = None  # each layer's [B, H, L, S]


@dataclass(eq=False)
class HeadOutput(ModelOutput):
    """What a head with one kind of scores returns."""

    logits: Tensor
    past_key_values: PastKeyValues | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class PretrainingOutput(ModelOutput):
    """What BertForPreTraining returns."""

    prediction_logits: Tensor  # [B, L, vocabulary]
    seq_relationship_logits: Tensor  # [B, 2]
    past_key_values: PastKeyValues | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class AnswerOutput(ModelOutput):
    """What BertForQuestionAnswering returns."""

    start_logits: Tensor  # [B, L]
    end_logits: Tensor  # [B, L]
    past_key_values: PastKeyValues | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
