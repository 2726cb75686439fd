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
PARTS = ("embeddings.", "encoder.", "pooler.")  # names that have the prefix BASE

Ours: TypeAlias = str | tuple[str, ...]  # a template, or several: stacked in one tensor
Names: TypeAlias = tuple[tuple[str, Ours], ...]  # (template of the family, our template)

# --- checks of the values of config.json ---

DEEPEST = 1000  # maximum layers: a malicious config could claim any amount of memory and time


def _listing(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a function that returns True for lists whose items satisfy ``of``."""
    return lambda value: isinstance(value, list | tuple) and all(map(of, value))


def _mapping(of: Callable[[Any], bool], to: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a function that returns True for objects whose keys and values satisfy these."""

    def holds(value: Any) -> bool:
        return isinstance(value, Mapping) and all(
            of(key) and to(entry) for key, entry in value.items()
        )

    return holds


def _is_table(name: Any) -> bool:
    """Return True if torch accepts this name for a module; it must not contain a dot."""
    return bool(is_text(name) and name and "." not in name)


def _is_label(value: Any) -> bool:
    return is_text(value) or value is None or isinstance(value, int | float)


def _is_index(value: Any) -> bool:
    """Return True for an integer, or its decimal digits (keys of JSON objects are strings)."""
    if isinstance(value, str):
        return value.isascii() and value.isdecimal() and len(value) < 10
    return COUNT.holds(value)


SIZE, COUNT = whole_number(1), whole_number()

# For these keys, null is invalid; for any other key, it means the default.
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)

# null is accepted as the default for all keys except the sizes.
CHECKS: Mapping[str, Check] = {
    "vocab_size": SIZE,
    "hidden_size": SIZE,
    "num_hidden_layers": whole_number(0, DEEPEST),
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
    "architectures": Check(_listing(is_text), "a list of strings"),
    "id2label": Check(_mapping(_is_index, _is_label), "an object of labels by number"),
    "label2id": Check(_mapping(_is_label, _is_index), "an object of labels and their numbers"),
    "num_labels": whole_number(1, 10**5),
    "problem_type": TEXT,
    "pruned_heads": Check(
        _mapping(_is_index, _listing(COUNT.holds)), "an object of layers and lists of heads"
    ),
    "extra_embeddings": Check(
        _mapping(_is_table, SIZE.holds), "an object of names without dots, and sizes"
    ),
    "extra_fields": Check(_mapping(is_text, is_text), "an object of names and fields"),
    "emotion_vocab_size": SIZE,
    "syllable_vocab_size": SIZE,
    "model_type": TEXT,
}

# --- shared by pages ---

# Class of transformers without the family's prefix -> ours; "" for a class of few families.
HEADS: Mapping[str, str] = {
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
WORD_HEAD: Names = (
    ("lm_head.dense", "cls.predictions.transform.dense"),
    ("lm_head.layer_norm", "cls.predictions.transform.LayerNorm"),
    ("lm_head", "cls.predictions"),
)
TEXT_HEAD: Mapping[str, Names] = {
    "BertForSequenceClassification": (
        ("classifier.dense", "classifier_head.dense"),
        ("classifier.out_proj", "classifier"),
    )
}


def classes(prefix: str, **others: str) -> dict[str, str]:
    """Return the classes of transformers with a prefix -> ours: HEADS, updated by ``others``."""
    return {prefix + theirs: ours for theirs, ours in {**HEADS, **others}.items() if ours}


def like_bert(values: JsonObject) -> Structure:
    """Return BERT's structure, whatever config.json contains."""
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
    for key, only in supported.items():
        value = values.get(key, only)
        if value != only and (only or value is not None):
            raise unsupported(values, key, json.dumps(only))


# The heads of RoBERTa, shared by other families.
LIKE_ROBERTA = Structure(
    word_head=WordHead(activation="gelu"),
    text_head=TextHead(pooler=False, drop_first=None),
)

# --- shared by pages with rotary positions ---

ROPE_TYPES = ("default", "linear")
# Tensor names of a layer in newer models of transformers with rotary positions.
ROTARY_LAYERS: Names = (
    ("layers.#.self_attn.q_proj", QKV[0]),
    ("layers.#.self_attn.k_proj", QKV[1]),
    ("layers.#.self_attn.v_proj", QKV[2]),
    ("layers.#.self_attn.o_proj", "encoder.layer.#.attention.output.dense"),
    ("layers.#.post_attention_layernorm", "encoder.layer.#.attention.output.LayerNorm"),
    ("layers.#.post_mlp_layernorm", "encoder.layer.#.output.LayerNorm"),
)
# Their names in older files.
OLDER_NORMS: Names = (
    ("emb_ln", "embeddings.LayerNorm"),
    ("encoder.layers.#.norm1", "encoder.layer.#.attention.output.LayerNorm"),
    ("encoder.layers.#.norm2", "encoder.layer.#.output.LayerNorm"),
)


def rotary(values: JsonObject, theta: float) -> tuple[Rotary, ...]:
    """Return the rotary positions of each layer, equal for all; ``theta`` is the default base.

    The current key is `rope_parameters`; older ones are `rope_scaling` and `rope_theta`. Raises
    ModelError if the head size is not the hidden size divided by the number of heads.
    """
    size = values.whole("head_dim", 1)
    heads = values["num_attention_heads"]
    if size is not None and size * heads != values.get("hidden_size", 768):
        raise values.bad("head_dim", "the hidden size divided by the heads")
    older = values.checked("rope_theta", POSITIVE) or theta
    scaling_settings = values.object("rope_scaling") or values.object("rope_parameters")
    return (scaled(scaling_settings, older),) * int(values["num_hidden_layers"])


def scaled(scaling_settings: JsonObject, theta: float) -> Rotary:
    """Return the rotary positions of one object. Raises ModelError for an unknown rope type."""
    key = "type" if scaling_settings.get("rope_type") is None else "rope_type"
    kind = scaling_settings.text(key) or "default"
    if kind not in ROPE_TYPES:
        raise unsupported(scaling_settings, key, " and ".join(ROPE_TYPES))
    if scaling_settings.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise unsupported(scaling_settings, "partial_rotary_factor", "1")
    base: float = scaling_settings.checked("rope_theta", POSITIVE) or theta
    scaling: float = scaling_settings.needed("factor", POSITIVE) if kind == "linear" else 1.0
    return Rotary(base, scaling)


# --- a page ---


class Family(NamedTuple):
    """A page: everything about a family except its network."""

    model_type: str  # in config.json
    title: str  # name in messages
    classes: Mapping[str, str]  # class of transformers -> ours
    base: str = "bert"  # prefix of encoder tensors in models with a head
    keys: Mapping[str, str] = {}  # field of BertConfig -> key of config.json
    lacks: Collection[str] = ()  # fields of BertConfig that have no key
    defaults: Mapping[str, Any] = {}  # key -> default, where it differs from BERT's
    structure: Callable[[JsonObject], Structure] = like_bert  # takes config.json with defaults
    tensors: Names = ()
    heads: Mapping[str, Names] = {}  # our class -> names of its head's tensors
    older: Names = ()  # names in older files only
    renewed: Callable[[JsonObject], Mapping[str, Any]] = dict  # updates an older config.json

    def key(self, name: str) -> str:
        """Return the key of config.json for a field of BertConfig."""
        return self.keys.get(name, name)

    def filled(self, raw: JsonObject) -> JsonObject:
        """Return config.json's values, with defaults for missing keys.

        null means the default too, except for sizes and ``pad_token_id``, whose null has a meaning.
        Raises ModelError for a value of the wrong type.
        """
        for name, check in CHECKS.items():
            key = self.key(name)
            present = raw.get(key) is not None or (key in raw and name in SIZES)
            if present and name not in self.lacks:
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

    def ours(self, name: str, kind: str = "") -> tuple[str, ...]:
        """Return our names for a tensor of a file; several if it is a stack of several tensors.

        ``kind`` is our class of the model: the names of its head precede those of other heads.
        """
        body = name.removeprefix(f"{self.base}.").removeprefix(BASE)
        for theirs, parts in self._pairs(kind):
            if (match := _pattern(theirs).match(body)) is not None:
                return tuple(_with_base(_filled(part, match)) for part in _each(parts))
        our_name = _with_base(body)
        return (BASE + body if our_name == body != name else our_name,)

    def theirs(self, name: str, kind: str = "") -> str:
        """Return the name under which transformers saves our tensor in a model of this class.

        All parts of a stacked tensor have the same name.
        """
        body = name.removeprefix(BASE)
        for theirs, parts in self._pairs(kind, others=False):
            matches = (_pattern(part).match(body) for part in _each(parts))
            if match := next(filter(None, matches), None):
                body = _filled(theirs, match)
                break
        headed = name.startswith(BASE) and kind != "BertModel"
        return f"{self.base}.{body}" if headed else body

    def _pairs(self, kind: str, *, others: bool = True) -> Iterator[tuple[str, Ours]]:
        yield from self.heads.get(kind, ())
        yield from self.tensors
        if others:
            yield from self.older
            for pairs in self.heads.values():
                yield from pairs


def _with_base(name: str) -> str:
    return BASE + name if name.startswith(PARTS) else name


def _each(parts: Ours) -> tuple[str, ...]:
    return (parts,) if isinstance(parts, str) else parts


def _filled(template: str, match: re.Match[str]) -> str:
    """Return a template with its numbers and the rest of the name taken from a match."""
    numbers = iter(match.groups())
    return re.sub("#", lambda _: next(numbers), template) + match.string[match.end() :]


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\#", r"(\d+)") + r"(?=\.|$)")
