"""A family: its names for keys of config.json, tensors and classes, mapped to BERT's names.

One table, key -> check, validates the values of config.json; a page checks its own keys.

Tensor names are pairs of templates, the family's and ours. `#` matches a number. A template matches
its own name and all names that continue it after a dot. Templates of encoder tensors have no prefix
(`roberta.`, ours is `bert.`), although the tensors do in classes with a head. The first matching
pair is used, in both directions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from bertcli.errors import ModelError, option
from bertcli.families.structure import BERT, Rotary, Structure, TextHead, WordHead
from bertcli.io.typed_json import (
    POSITIVE,
    PROBABILITY,
    SWITCH,
    TEXT,
    Check,
    JsonObject,
    is_text,
    whole_number,
)

BASE = "bert."
BASE_MODULES = ("embeddings.", "encoder.", "pooler.")  # their names have the prefix BASE

OurTemplates: TypeAlias = str | tuple[str, ...]  # several if they are stacked in one tensor
TensorNames: TypeAlias = tuple[tuple[str, OurTemplates], ...]  # (template of the family, ours)

# --- checks of the values of config.json ---

MAX_LAYERS = 1000  # a malicious config could claim any amount of memory and time


def _list_of(is_item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a function that returns True for lists whose items satisfy `is_item`."""
    return lambda value: isinstance(value, list | tuple) and all(map(is_item, value))


def _object_of(
    is_key: Callable[[Any], bool], is_value: Callable[[Any], bool]
) -> Callable[[Any], bool]:
    """Return a function that returns True for objects whose keys and values satisfy these."""

    def holds(mapping: Any) -> bool:
        return isinstance(mapping, Mapping) and all(
            is_key(key) and is_value(value) for key, value in mapping.items()
        )

    return holds


def _is_module_name(name: Any) -> bool:
    """Return True if torch accepts this name for a module; it must not contain a dot."""
    return bool(is_text(name) and name and "." not in name)


def _is_label(value: Any) -> bool:
    return is_text(value) or value is None or isinstance(value, int | float)


def _is_index(value: Any) -> bool:
    """Return True for an integer, or its decimal digits (keys of JSON objects are strings)."""
    if isinstance(value, str):
        return value.isascii() and value.isdecimal() and len(value) < 10
    return COUNT.holds(value)


SIZE = whole_number(1)
COUNT = whole_number()

# For these keys, null is invalid; for any other key, it means the default.
SIZE_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)

CHECKS: Mapping[str, Check] = {
    "vocab_size": SIZE,
    "hidden_size": SIZE,
    "num_hidden_layers": whole_number(0, MAX_LAYERS),
    "num_attention_heads": SIZE,
    "intermediate_size": SIZE,
    "hidden_act": TEXT,
    "hidden_dropout_prob": PROBABILITY,
    "attention_probs_dropout_prob": PROBABILITY,
    "max_position_embeddings": SIZE,
    "type_vocab_size": COUNT,
    "initializer_range": PROBABILITY,
    "layer_norm_eps": POSITIVE,
    "pad_token_id": COUNT,
    "position_embedding_type": TEXT,
    "chunk_size_feed_forward": COUNT,
    "classifier_dropout": PROBABILITY,
    "is_decoder": SWITCH,
    "add_cross_attention": SWITCH,
    "use_cache": SWITCH,
    "output_attentions": SWITCH,
    "output_hidden_states": SWITCH,
    "tie_word_embeddings": SWITCH,
    "architectures": Check(_list_of(is_text), "a list of strings"),
    "id2label": Check(_object_of(_is_index, _is_label), "an object of labels by number"),
    "label2id": Check(_object_of(_is_label, _is_index), "an object of labels and their numbers"),
    "num_labels": whole_number(1, 10**5),
    "problem_type": TEXT,
    "pruned_heads": Check(
        _object_of(_is_index, _list_of(COUNT.holds)), "an object of layers and lists of heads"
    ),
    "extra_embeddings": Check(
        _object_of(_is_module_name, SIZE.holds), "an object of names without dots, and sizes"
    ),
    "extra_fields": Check(_object_of(is_text, is_text), "an object of names and fields"),
    "emotion_vocab_size": SIZE,
    "syllable_vocab_size": SIZE,
    "model_type": TEXT,
}

# --- shared by pages ---

# Class of transformers without the family's prefix -> ours; "" for a class of few families.
CLASSES: Mapping[str, str] = {
    "Model": "BertModel",
    "ForPreTraining": "",
    "ForMaskedLM": "BertForMaskedLM",
    "ForCausalLM": "",
    "ForSequenceClassification": "BertForSequenceClassification",
    "ForMultipleChoice": "BertForMultipleChoice",
    "ForTokenClassification": "BertForTokenClassification",
    "ForQuestionAnswering": "BertForQuestionAnswering",
}
QKV = (
    "encoder.layer.#.attention.self.query",
    "encoder.layer.#.attention.self.key",
    "encoder.layer.#.attention.self.value",
)
WORD_HEAD_TENSORS: TensorNames = (
    ("lm_head.dense", "cls.predictions.transform.dense"),
    ("lm_head.layer_norm", "cls.predictions.transform.LayerNorm"),
    ("lm_head", "cls.predictions"),
)
TEXT_HEAD_TENSORS: Mapping[str, TensorNames] = {
    "BertForSequenceClassification": (
        ("classifier.dense", "classifier_head.dense"),
        ("classifier.out_proj", "classifier"),
    )
}


def classes(prefix: str, **changes: str) -> dict[str, str]:
    """Return class of transformers -> ours, for a family with this prefix of class names.

    `changes` replace entries of CLASSES or add some; "" removes a class.
    """
    our_classes = {**CLASSES, **changes}
    return {prefix + suffix: our_class for suffix, our_class in our_classes.items() if our_class}


def like_bert(values: JsonObject) -> Structure:
    """Return BERT's structure, whatever the values of config.json are."""
    return BERT


def unsupported(values: JsonObject, key: str, supported: str) -> ModelError:
    """Return the error for a variant of a known family that is not supported."""
    return ModelError(
        f"{values.source}: {values.path}{key} {values[key]!r} is not supported, only {supported}",
        f"the folder is not broken: bertcli lacks this variant; give another {option('model')}",
    )


def refuse_variants(values: JsonObject, supported: Mapping[str, Any]) -> None:
    """Raise ModelError unless each of these keys is absent or has the one supported value.

    If the supported value is falsy, null is accepted too.
    """
    for key, supported_value in supported.items():
        value = values.get(key, supported_value)
        is_null_accepted = not supported_value
        if value != supported_value and not (value is None and is_null_accepted):
            raise unsupported(values, key, json.dumps(supported_value))


# The heads of RoBERTa, shared by other families.
LIKE_ROBERTA = Structure(
    word_head=WordHead(activation="gelu"),
    text_head=TextHead(pooler=False, drop_first=None),
)

# --- shared by pages with rotary positions ---

ROPE_TYPES = ("default", "linear")
# Tensor names of a layer in newer models of transformers with rotary positions.
ROTARY_ATTENTION: TensorNames = (
    ("layers.#.self_attn.q_proj", QKV[0]),
    ("layers.#.self_attn.k_proj", QKV[1]),
    ("layers.#.self_attn.v_proj", QKV[2]),
    ("layers.#.self_attn.o_proj", "encoder.layer.#.attention.output.dense"),
)
GATED_FEED_FORWARD: TensorNames = (
    ("layers.#.mlp.gate_proj", "encoder.layer.#.intermediate.gate"),
    ("layers.#.mlp.up_proj", "encoder.layer.#.intermediate.dense"),
    ("layers.#.mlp.down_proj", "encoder.layer.#.output.dense"),
)
ROTARY_LAYERS: TensorNames = (
    *ROTARY_ATTENTION,
    ("layers.#.post_attention_layernorm", "encoder.layer.#.attention.output.LayerNorm"),
    ("layers.#.post_mlp_layernorm", "encoder.layer.#.output.LayerNorm"),
)
# Their names in older files.
OLDER_NORMS: TensorNames = (
    ("emb_ln", "embeddings.LayerNorm"),
    ("encoder.layers.#.norm1", "encoder.layer.#.attention.output.LayerNorm"),
    ("encoder.layers.#.norm2", "encoder.layer.#.output.LayerNorm"),
)


def rotary_per_layer(values: JsonObject, default_theta: float) -> tuple[Rotary, ...]:
    """Return the rotary positions of each layer, equal for all.

    The current key is `rope_parameters`; older ones are `rope_scaling` and `rope_theta`. Raises
    ModelError if the head size is not the hidden size divided by the number of heads.
    """
    head_size = values.integer("head_dim", 1)
    heads = values["num_attention_heads"]
    if head_size is not None and head_size * heads != values.get("hidden_size", 768):
        raise values.bad("head_dim", "the hidden size divided by the heads")
    return equal_rotary(values, default_theta)


def equal_rotary(values: JsonObject, default_theta: float) -> tuple[Rotary, ...]:
    """Return the rotary positions of each layer, equal for all, for any head size."""
    theta = values.checked("rope_theta", POSITIVE) or default_theta
    settings = values.object("rope_scaling") or values.object("rope_parameters")
    return (read_rotary(settings, theta),) * int(values["num_hidden_layers"])


def head_size(values: JsonObject) -> int | None:
    """Return the size of a head; None if it is the hidden size divided by the heads."""
    size = values.integer("head_dim", 1)
    if size is None or size * values["num_attention_heads"] == values["hidden_size"]:
        return None
    return size


def key_value_heads(values: JsonObject) -> int | None:
    """Return the number of heads with keys and values of their own; None if all have them.

    Raises ModelError unless it divides the number of heads.
    """
    heads = values["num_attention_heads"]
    count = values.integer("num_key_value_heads", 1) or heads
    if heads % count:
        raise values.bad("num_key_value_heads", f"a divisor of the {heads} heads")
    return None if count == heads else int(count)


def read_rotary(settings: JsonObject, default_theta: float) -> Rotary:
    """Return the rotary positions of `rope_parameters` or of an older `rope_scaling`.

    Raises ModelError for an unknown rope type.
    """
    key = "type" if settings.get("rope_type") is None else "rope_type"
    rope_type = settings.text(key) or "default"
    if rope_type not in ROPE_TYPES:
        raise unsupported(settings, key, " and ".join(ROPE_TYPES))
    if settings.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise unsupported(settings, "partial_rotary_factor", "1")
    theta: float = settings.checked("rope_theta", POSITIVE) or default_theta
    scaling: float = settings.needed("factor", POSITIVE) if rope_type == "linear" else 1.0
    return Rotary(theta, scaling)


# --- a page ---


class Family(NamedTuple):
    """A page: everything about a family except its network."""

    model_type: str  # in config.json
    title: str  # name in messages
    classes: Mapping[str, str]  # class of transformers -> ours
    base: str = "bert"  # prefix of encoder tensors in models with a head
    keys: Mapping[str, str] = {}  # field of BertConfig -> key of config.json
    absent_fields: Collection[str] = ()  # fields of BertConfig that have no key
    defaults: Mapping[str, Any] = {}  # key -> default, where it differs from BERT's
    structure: Callable[[JsonObject], Structure] = like_bert  # takes config.json with defaults
    tensors: TensorNames = ()
    head_tensors: Mapping[str, TensorNames] = {}  # our class -> names of its head's tensors
    older_tensors: TensorNames = ()  # names in older files only
    update_config: Callable[[JsonObject], Mapping[str, Any]] = dict  # of an older config.json

    def key(self, field: str) -> str:
        """Return the key of config.json for a field of BertConfig."""
        return self.keys.get(field, field)

    def with_defaults(self, raw: JsonObject) -> JsonObject:
        """Return config.json's values, with defaults for missing keys.

        null means the default too, except for sizes and ``pad_token_id``, whose null has a meaning.
        Raises ModelError for a value of the wrong type.
        """
        for field, check in CHECKS.items():
            key = self.key(field)
            has_value = raw.get(key) is not None or (key in raw and field in SIZE_KEYS)
            if has_value and field not in self.absent_fields:
                raw.needed(key, check)
        values = {key: value for key, value in raw.items() if value is not None}
        if "pad_token_id" in raw:
            values["pad_token_id"] = raw["pad_token_id"]
        return JsonObject({**self.defaults, **values}, raw.source)

    def our_class(self, name: str) -> str:
        """Return our class for a class of transformers. Unknown names are returned unchanged."""
        return self.classes.get(name, name)

    def their_class(self, name: str) -> str:
        """Return the class of transformers for our class. Unknown names are returned unchanged."""
        return next((theirs for theirs, ours in self.classes.items() if ours == name), name)

    # --- names of tensors ---

    def our_names(self, name: str, architecture: str = "") -> tuple[str, ...]:
        """Return our names for a tensor of a file; several if it is a stack of several tensors.

        ``architecture`` is our class of the model: the names of its head are tried before those of
        other heads.
        """
        body = name.removeprefix(f"{self.base}.").removeprefix(BASE)
        for template, our_templates in self._template_pairs(architecture):
            if match := _pattern(template).match(body):
                return tuple(_with_base(_fill(ours, match)) for ours in _as_tuple(our_templates))
        our_name = _with_base(body)
        if our_name == body != name:  # an unknown tensor of the encoder
            our_name = BASE + body
        return (our_name,)

    def their_name(self, name: str, architecture: str = "") -> str:
        """Return the name under which transformers saves our tensor in a model of this class.

        Our tensors that are stacked in one tensor have the same name.
        """
        body = name.removeprefix(BASE)
        for template, our_templates in self._template_pairs(architecture, only_current=True):
            matches = (_pattern(ours).match(body) for ours in _as_tuple(our_templates))
            if match := next(filter(None, matches), None):
                body = _fill(template, match)
                break
        has_prefix = name.startswith(BASE) and architecture != "BertModel"
        return f"{self.base}.{body}" if has_prefix else body

    def _template_pairs(
        self, architecture: str, *, only_current: bool = False
    ) -> Iterator[tuple[str, OurTemplates]]:
        """Yield the pairs of templates for a class, then those of older files and other heads.

        `only_current` leaves the latter out.
        """
        yield from self.head_tensors.get(architecture, ())
        yield from self.tensors
        if not only_current:
            yield from self.older_tensors
            for pairs in self.head_tensors.values():
                yield from pairs


def _with_base(name: str) -> str:
    """Return the name of an encoder's tensor with the prefix BASE; others are unchanged."""
    return BASE + name if name.startswith(BASE_MODULES) else name


def _as_tuple(templates: OurTemplates) -> tuple[str, ...]:
    return (templates,) if isinstance(templates, str) else templates


def _fill(template: str, match: re.Match[str]) -> str:
    """Return a template with its numbers and the rest of the name taken from a match."""
    numbers = iter(match.groups())
    return re.sub("#", lambda _: next(numbers), template) + match.string[match.end() :]


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """Return the pattern that matches the start of a name, with one group for each `#`."""
    return re.compile(re.escape(template).replace(r"\#", r"(\d+)") + r"(?=\.|$)")
