"""Outputs of models: tensors by name and by position.

    output = model(ids)
    output.last_hidden_state, output["last_hidden_state"], output[0]   # [B, L, hidden]
    last, pooled = model(ids)

Names and order are those of transformers' outputs. Tensors that a call does not compute are None
and are not counted in the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

LOSS = "torch.nn.functional.cross_entropy(output.logits.flatten(0, -2), labels.flatten())"


@dataclass(eq=False)
class ModelOutput:
    """Tensors by name, or by position among those that are not None.

    Iteration yields tensors, so that outputs can be unpacked; in transformers it yields names.
    """

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values that are not None, in order."""
        return tuple(self.values())

    def keys(self) -> list[str]:
        """Return the names of the values that are not None."""
        return [entry.name for entry in fields(self) if getattr(self, entry.name) is not None]

    def values(self) -> list[Any]:
        """Return the values that are not None."""
        return [getattr(self, name) for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """Return pairs of name and value, without values of None."""
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
        """Raise AttributeError with a message on what to write instead."""
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
    """The output of a BertModel."""

    last_hidden_state: Tensor  # [B, L, hidden]
    pooler_output: Tensor | None = None  # [B, hidden]
    hidden_states: tuple[Tensor, ...] | None = None  # embeddings, then each layer
    past_key_values: PastKeyValues | None = None
    attentions: tuple[Tensor, ...] | None = None  # per layer [B, H, L, L]
    cross_attentions: tuple[Tensor, ...] | None = None  # per layer [B, H, L, S]


@dataclass(eq=False)
class HeadOutput(ModelOutput):
    """The output of a head with one tensor of logits."""

    logits: Tensor
    past_key_values: PastKeyValues | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class PretrainingOutput(ModelOutput):
    """The output of BertForPreTraining."""

    prediction_logits: Tensor  # [B, L, vocabulary]
    seq_relationship_logits: Tensor  # [B, 2]
    past_key_values: PastKeyValues | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class AnswerOutput(ModelOutput):
    """The output of BertForQuestionAnswering."""

    start_logits: Tensor  # [B, L]
    end_logits: Tensor  # [B, L]
    past_key_values: PastKeyValues | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
