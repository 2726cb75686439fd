"""config.json as a frozen record, with the names of BERT's config. Does not import torch.

The page of a family maps the keys of its config.json to these names. Unknown keys are kept and
written back; unknown values are rejected by the code that uses them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import ModelError, UsageError, option
from bertcli.families.family import CHECKS, Family
from bertcli.families.registry import BERT, family_of
from bertcli.families.structure import Structure
from bertcli.io.typed_json import JsonObject, read_object, shown, whole_number
from bertcli.models.activations import ACTIVATIONS

POSITION_TYPES = ("absolute", "relative_key", "relative_key_query", "sinusoidal")
DERIVED_FIELDS = ("other", "family", "structure")  # not keys of config.json

# Key of third-party configs -> the extra embedding whose size it has.
EXTRA_SIZE_KEYS: Mapping[str, str] = {
    "emotion_vocab_size": "emotion",
    "syllable_vocab_size": "syllable",
}


@dataclass(frozen=True, init=False)
class BertConfig:
    """The shape of a BERT and of its heads; the defaults are those of bert-base-uncased.

    `BertConfig(...)` takes the keys of config.json as keywords, as `from_dict` does.
    Source: transformers' BertConfig (names, defaults); the last six fields are our additions.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str | Callable[[Any], Any] = "gelu"  # a function cannot be saved
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
    family: Family = field(default=BERT, repr=False)
    structure: Structure = field(default_factory=Structure)  # derived by the family

    def __init__(self, *vocab_size: int, **keys: Any) -> None:
        """Create a config from keys of config.json, or from all fields, as `replace` does.

        `hidden_act` may be a function. Raises UsageError for a misspelt key and ModelError for an
        invalid value.
        """
        values = dict(zip(("vocab_size",), vocab_size, strict=False), **keys)
        if "structure" not in keys:
            values = _with_file_keys(values)
            function = values.pop("hidden_act") if callable(keys.get("hidden_act")) else None
            values = _field_values(values, "BertConfig")
            if function:
                values["hidden_act"] = function
        for entry in fields(self):
            default = entry.default if entry.default_factory is MISSING else entry.default_factory()
            object.__setattr__(self, entry.name, values.pop(entry.name, default))
        if values:
            raise TypeError(f"BertConfig has no {', '.join(values)}")
        if "structure" not in keys:
            self.refuse_contradictions("BertConfig")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], source: str = "the config") -> BertConfig:
        """Read the content of config.json. Raises ModelError, with `source`, if it is invalid."""
        config = cls(**_field_values(raw, source))
        config.refuse_contradictions(source)
        return config

    @classmethod
    def from_json_file(cls, path: str | Path) -> BertConfig:
        """Read a config.json. Raises ModelError if it is missing or invalid."""
        if not Path(path).is_file():
            raise ModelError(f"{path}: file not found", "give the path of a config.json")
        return cls.from_dict(read_object(Path(path)), str(path))

    @classmethod
    def from_pretrained(cls, name: str | Path, **keys: Any) -> BertConfig:
        """Read the config of a model by its folder or name; `keys` replace values of the file."""
        import bertcli

        folder = Path(name).expanduser()
        if not folder.is_dir():
            folder = bertcli.find_model(str(name)).path
        raw = read_object(folder / "config.json")
        return cls.from_dict(dict(raw) | keys, str(folder / "config.json"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the value of a key of config.json that is no field, as transformers does."""
            other = self.__dict__.get("other", {})
            if name in other:
                return other[name]
            if name in EXTRA_SIZE_KEYS and EXTRA_SIZE_KEYS[name] in self.extra_embeddings:
                return self.extra_embeddings[EXTRA_SIZE_KEYS[name]]
            raise AttributeError(f"this config has no {name!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the content of config.json: unknown keys, and keys without their default."""
        defaults = BertConfig()
        values = {name: getattr(self, name) for name in _keys_of_fields(self.family)}
        values["architectures"] = tuple(map(self.family.their_class, self.architectures))
        written = {
            self.family.key(name): value
            for name, value in values.items()
            if value != getattr(defaults, name) or value not in (None, (), {})
        }
        return {"model_type": self.family.model_type} | written | dict(self.other)

    def to_json(self) -> str:
        """Return the text of config.json. Raises ModelError if ``hidden_act`` is a function."""
        if not isinstance(self.hidden_act, str):
            names = ", ".join(ACTIVATIONS)
            raise ModelError(
                "config.json cannot hold a function as hidden_act", f"name it: {names}"
            )
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    to_json_string = to_json

    @property
    def model_type(self) -> str:
        """The value of `model_type` in config.json, which identifies the family."""
        return self.family.model_type

    @property
    def output_attentions(self) -> bool:
        """True if calls of a model return the attention maps."""
        return bool(self.other.get("output_attentions"))

    @property
    def output_hidden_states(self) -> bool:
        """True if calls of a model return the states of all layers."""
        return bool(self.other.get("output_hidden_states"))

    def with_labels(self, names: Sequence[str]) -> BertConfig:
        """Return the config of a head with these labels, in the order of its logits."""
        return replace(
            self,
            id2label=dict(enumerate(names)),
            label2id={name: index for index, name in enumerate(names)},
        )

    def refuse_contradictions(self, source: str) -> None:
        """Raise ModelError, with `source`, for impossible pruned heads or number of positions."""
        self.refuse_bad_heads(source)
        if self.structure.absolute_positions and self.most_tokens < 1:
            key = self.family.key("max_position_embeddings")
            settings = JsonObject({key: self.max_position_embeddings}, source)
            least = self.structure.first_position + 1  # one token
            settings.needed(key, whole_number(least))

    def refuse_bad_heads(self, source: str) -> None:
        """Raise ModelError, with `source`, if pruned heads do not exist or a layer keeps none."""
        layers = self.num_hidden_layers
        heads = self.num_attention_heads
        for layer, pruned in self.pruned_heads.items():
            exist = 0 <= layer < layers and all(0 <= head < heads for head in pruned)
            if not exist or len(set(pruned)) == heads:
                raise ModelError(
                    f"{source}: pruned_heads: layer {layer} cannot lose the heads {shown(pruned)}: "
                    f"there are {layers} layers of {heads} heads, and one has to stay"
                )

    def refuse_unbuildable(self, architecture: str = "BertModel") -> None:
        """Raise ModelError for a config from which this class cannot be built."""
        pad = self.pad_token_id
        structure = self.structure
        if pad is not None and not 0 <= pad < self.vocab_size:
            raise ModelError(f"pad_token_id {pad} is outside the vocabulary of {self.vocab_size}")
        if self.add_cross_attention and not self.is_decoder:
            raise ModelError("add_cross_attention needs is_decoder as well")
        if structure.rotary and self.head_size % 2:
            raise ModelError(f"rotary positions need an even head size, not {self.head_size}")
        if self.pruned_heads and (structure.buckets or structure.disentangled):
            raise ModelError("heads of a model whose layers share a table cannot be pruned")
        if self.pruned_heads and structure.key_value_heads:
            raise ModelError("heads of a model that share keys and values cannot be pruned")
        text_head = architecture == "BertForSequenceClassification"
        if text_head and not structure.pooler and structure.text_head.pooler:
            raise ModelError(
                f"{self.family.title} has no head for whole texts",
                f"bertcli train {option('frozen', True)} trains a classifier of its vectors",
            )
        if architecture == "BertForQuestionAnswering" and self.num_labels != 2:
            raise ModelError(f"an answer has a start and an end, not {self.num_labels} labels")
        for key, choices in (
            ("hidden_act", ACTIVATIONS),
            ("position_embedding_type", POSITION_TYPES),
        ):
            value = getattr(self, key)
            if isinstance(value, str) and value not in choices:
                raise ModelError(f"{key} {value!r} is unknown", f"known: {', '.join(choices)}")

    @property
    def fields_of_extra(self) -> dict[str, str]:
        """Extra embedding -> the field of records with its ids, by default NAME_ids."""
        return {name: self.extra_fields.get(name, f"{name}_ids") for name in self.extra_embeddings}

    @property
    def num_labels(self) -> int:
        """Number of labels of the classification heads; 2 if the file lists none."""
        return len(self.id2label) or 2

    def labels(self, count: int) -> list[str]:
        """Return the names of the first `count` labels, in the order of the logits."""
        return [self.id2label.get(index, f"LABEL_{index}") for index in range(count)]

    @property
    def head_size(self) -> int:
        """Size of an attention head. Raises ModelError unless the heads divide the hidden size."""
        if self.structure.head_size is not None:
            return self.structure.head_size
        size, remainder = divmod(self.hidden_size, self.num_attention_heads)
        if remainder:
            raise ModelError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        return size

    @property
    def distinct_layers(self) -> int:
        """Number of layers in the checkpoint: repeated layers count once."""
        return len(set(self.structure.layer_groups or range(self.num_hidden_layers)))

    @property
    def table_size(self) -> int:
        """Width of the word, position and token type embeddings."""
        return self.structure.embedding_size or self.hidden_size

    @property
    def most_tokens(self) -> int:
        """Greatest number of tokens of a text that have positions."""
        return self.max_position_embeddings - self.structure.first_position

    def takes_types(self, highest: int) -> bool:
        """Return True if the model has embeddings for token types up to `highest`."""
        return not self.structure.token_types or highest < self.type_vocab_size

    def key_value_heads(self, layer: int) -> int:
        """Return the number of heads of a layer that have keys and values of their own."""
        return self.structure.key_value_heads or self.heads(layer)

    def heads(self, layer: int) -> int:
        """Return the number of heads of a layer after pruning."""
        return self.num_attention_heads - len(self.pruned_heads.get(layer, ()))


# How to read fields whose types JSON lacks: tuples, and integers as keys.
_FIELD_READERS: Mapping[str, Any] = {
    "id2label": lambda labels: {int(i): str(name) for i, name in labels.items()},
    "label2id": lambda labels: {str(name): int(i) for name, i in labels.items()},
    "pruned_heads": lambda layers: {int(i): tuple(sorted({*heads})) for i, heads in layers.items()},
}


def _keys_of_fields(family: Family) -> dict[str, str]:
    """Return field -> key of config.json in a family, for all fields that have a key."""
    skipped = {*DERIVED_FIELDS, *family.absent_fields}
    return {
        entry.name: family.key(entry.name)
        for entry in fields(BertConfig)
        if entry.name not in skipped
    }


def _field_values(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the fields of a BertConfig from the content of config.json, read from `source`."""
    content = JsonObject(raw, source)
    for key in ("model_type", "architectures"):
        content.checked(key, CHECKS[key])
    family = family_of(raw, source)
    raw = family.update_config(content)
    settings = family.with_defaults(JsonObject(raw, source))
    structure = family.structure(settings)
    if structure.token_types:
        settings.integer("type_vocab_size", 1)
    keys = _keys_of_fields(family)
    content_values = dict(settings)
    extra_sizes = {}
    for key, name in EXTRA_SIZE_KEYS.items():
        if key in content_values:
            extra_sizes[name] = content_values.pop(key)
    if extra_sizes:
        listed = content_values.get("extra_embeddings", {})
        content_values["extra_embeddings"] = extra_sizes | dict(listed)
    values = {name: content_values[key] for name, key in keys.items() if key in content_values}
    for name, read in _FIELD_READERS.items():
        if name in values:
            values[name] = read(values[name])
    values["architectures"] = tuple(map(family.our_class, values.get("architectures", ())))
    known = {*keys.values(), *EXTRA_SIZE_KEYS, "model_type"}
    other = {key: value for key, value in raw.items() if key not in known}
    label_count = other.pop("num_labels", None)
    if label_count is not None and not values.get("id2label"):
        values["id2label"] = {index: f"LABEL_{index}" for index in range(label_count)}
    return values | {"other": other, "family": family, "structure": structure}


def _with_file_keys(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments under the keys of the family's config.json.

    Raises UsageError for a misspelt key, and for arguments of older classes.
    """
    older_name = "vocab_size_or_config_json_file"
    first_argument = keywords.get(older_name, keywords.get("vocab_size"))
    if isinstance(first_argument, str | Path):
        line = f"write BertConfig.from_json_file({str(first_argument)!r})"
        raise UsageError(f"BertConfig takes no file: {line}", line)
    if older_name in keywords:
        line = f"write BertConfig(vocab_size={first_argument!r})"
        raise UsageError(f"BertConfig takes no {older_name}: {line}", line)
    from difflib import get_close_matches  # only constructors in Python need it

    family = family_of(keywords, "BertConfig")
    keys = _keys_of_fields(family)
    known = {*keys.values(), *CHECKS, *family.defaults, *vars(BertConfig)}
    for name in keywords:
        similar = [] if name in known else get_close_matches(name, known, 1, 0.85)
        if similar:
            line = f"did you mean {similar[0]}?"
            raise UsageError(f"BertConfig has no {name!r}: {line}", line)
    return {keys.get(name, name): value for name, value in keywords.items()}
