"""What a BERT is made of: config.json as a frozen record, in the file's own words.

A key that is not known here is kept and written back. A value that is not known is refused by the
code that would have to act on it. Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bertcli.errors import ModelError
from bertcli.families.structure import BERT, Structure
from bertcli.files.typed_json import JsonObject, is_regular, read_object
from bertcli.models.config_checks import CHECKS, refuse_bad_heads

# null is no size; for any other key it is the default.
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)

MADE = ("other", "structure")  # fields that are no keys of config.json

# Sizes of extra embeddings in the configs of others -> the embedding.
EXTRA_SIZES: Mapping[str, str] = {
    "emotion_vocab_size": "emotion",
    "syllable_vocab_size": "syllable",
}


@dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT and of its heads; the defaults are those of bert-base-uncased.

    Source: transformers' BertConfig (names, defaults), and for the last line our own additions.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    position_embedding_type: str = "absolute"
    chunk_size_feed_forward: int = 0
    classifier_dropout: float | None = None
    is_decoder: bool = False
    add_cross_attention: bool = False
    use_cache: bool = True
    tie_word_embeddings: bool = True
    architectures: tuple[str, ...] = ()
    id2label: Mapping[int, str] = field(default_factory=dict)
    label2id: Mapping[str, int] = field(default_factory=dict)
    problem_type: str | None = None
    pruned_heads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    extra_embeddings: Mapping[str, int] = field(default_factory=dict)  # name -> vocabulary size
    extra_fields: Mapping[str, str] = field(default_factory=dict)  # name -> field of its ids
    other: Mapping[str, Any] = field(default_factory=dict)  # keys that bertcli does not use
    structure: Structure = BERT  # where the model differs from BERT; no key of config.json

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], source: str = "the config") -> BertConfig:
        """Read config.json's content; ModelError, naming `source`, when it is not of a BERT."""
        known = {f.name for f in fields(cls)} - {*MADE}
        said = {key: value for key, value in raw.items() if key in SIZES or value is not None}
        checked = JsonObject(said, source)
        for key, check in CHECKS.items():
            if key in said:
                checked.needed(key, *check)
        _refuse_other_models(said, source)
        tables = {name: said.pop(key) for key, name in EXTRA_SIZES.items() if key in said}
        if tables:
            said["extra_embeddings"] = {**tables, **said.get("extra_embeddings", {})}
        values = {key: _READERS.get(key, _same)(said[key]) for key in said if key in known}
        if "pad_token_id" in raw:  # the only key whose null has a meaning
            values["pad_token_id"] = raw["pad_token_id"]
        other = {key: value for key, value in raw.items() if key not in known}
        other = {key: value for key, value in other.items() if key not in EXTRA_SIZES}
        count = other.pop("num_labels", None)
        if count is not None and not values.get("id2label"):
            values["id2label"] = {i: f"LABEL_{i}" for i in range(count)}
        if other.get("model_type", "") is None:
            del other["model_type"]
        config = cls(**values, other=other)
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        refuse_bad_heads(config.pruned_heads, layers, heads, source)
        return config

    @classmethod
    def from_file(cls, path: Path) -> BertConfig:
        """Read a config.json; ModelError when it cannot be read or is not of a BERT."""
        if not is_regular(path):
            raise ModelError(f"{path}: file not found")
        return cls.from_dict(read_object(path), str(path))

    def to_dict(self) -> dict[str, Any]:
        """Return config.json's content: all keys but defaults, unknown ones included."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in MADE}
        unset = BertConfig()
        kept = {
            key: value
            for key, value in said.items()
            if value != getattr(unset, key) or value not in (None, (), {})
        }
        return {"model_type": "bert", **kept, **self.other}

    def to_json(self) -> str:
        """Return config.json's text."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def with_labels(self, names: Sequence[str]) -> BertConfig:
        """Return the config of a head with these labels, in the order of its logits."""
        return replace(
            self,
            id2label=dict(enumerate(names)),
            label2id={name: index for index, name in enumerate(names)},
        )

    @property
    def fields_of_extra(self) -> dict[str, str]:
        """Extra embedding -> the field of records with its ids; NAME_ids where none is named."""
        return {name: self.extra_fields.get(name, f"{name}_ids") for name in self.extra_embeddings}

    @property
    def num_labels(self) -> int:
        """Number of labels of the classification heads; two when the file names none."""
        return len(self.id2label) or 2

    @property
    def head_size(self) -> int:
        """Width of one attention head; ModelError when the heads do not divide the hidden size."""
        size, rest = divmod(self.hidden_size, self.num_attention_heads)
        if rest:
            raise ModelError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        return size

    def heads(self, layer: int) -> int:
        """Return the number of heads of this layer after pruning."""
        return self.num_attention_heads - len(self.pruned_heads.get(layer, ()))

    def count_parameters(self, pooler: bool = True) -> int:
        """Count the parameters of the BertModel that this config describes, task heads apart."""
        hidden, norm = self.hidden_size, 2 * self.hidden_size
        tables = self.vocab_size + self.type_vocab_size + sum(self.extra_embeddings.values())
        if self.position_embedding_type != "sinusoidal":
            tables += self.max_position_embeddings
        layers = sum(self._count_layer(layer) for layer in range(self.num_hidden_layers))
        return tables * hidden + norm + layers + pooler * _linear(hidden, hidden)

    def _count_layer(self, layer: int) -> int:
        hidden, inner, norm = self.hidden_size, self.intermediate_size, 2 * self.hidden_size
        width = self.heads(layer) * self.head_size
        distances = 2 * self.max_position_embeddings - 1
        if not self.position_embedding_type.startswith("relative_key"):
            distances = 0
        attention = 3 * _linear(hidden, width) + _linear(width, hidden) + norm
        across = 4 * _linear(hidden, hidden) + norm
        feed_forward = _linear(hidden, inner) + _linear(inner, hidden) + norm
        return (
            attention
            + distances * self.head_size
            + self.add_cross_attention * across
            + feed_forward
        )


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


# JSON knows neither tuples nor whole numbers as keys.
_READERS: Mapping[str, Any] = {
    "architectures": tuple,
    "id2label": lambda labels: {int(i): str(name) for i, name in labels.items()},
    "label2id": lambda labels: {str(name): int(i) for name, i in labels.items()},
    "pruned_heads": lambda layers: {int(i): tuple(sorted({*heads})) for i, heads in layers.items()},
    "extra_embeddings": dict,
    "extra_fields": dict,
}


def _same(value: Any) -> Any:
    return value


def _refuse_other_models(raw: Mapping[str, Any], source: str) -> None:
    """Google's bert_config.json has no model_type, so then the architecture's name decides."""
    named = (raw.get("architectures") or ["Bert"])[0]
    kind = raw.get("model_type", "bert" if named.startswith("Bert") else named)
    if kind != "bert":
        raise ModelError(
            f"{source}: this is a {kind} model; bertcli supports BERT",
            hint='choose a folder whose config.json says "model_type": "bert"',
        )
