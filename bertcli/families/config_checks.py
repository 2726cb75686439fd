"""What the values of config.json may be: one table, key -> check. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bertcli.files.typed_json import (
    POSITIVE,
    PROBABILITY,
    SWITCH,
    TEXT,
    Check,
    is_text,
    whole_number,
)

DEEPEST = 1000  # layers; a file of settings alone would ask for the memory and time of more

HIDDEN_ACTS = (
    "gelu",
    "gelu_python",
    "gelu_new",
    "gelu_fast",
    "gelu_accurate",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "gelu_10",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "silu",
    "swish",
    "hardswish",
    "mish",
    "laplace",
    "sqrtsoftplus",
    "sigmoid",
    "tanh",
    "linear",
)


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(is_text, value))


def _mapping(of: Callable[[Any], bool], to: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return what tells whether a value is an object of such keys and values."""

    def holds(value: Any) -> bool:
        return isinstance(value, Mapping) and all(
            of(key) and to(entry) for key, entry in value.items()
        )

    return holds


def _is_table(name: Any) -> bool:
    """Tell whether a module may have this name, which cannot contain a dot."""
    return bool(is_text(name) and name and "." not in name)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(COUNT.holds, value))


def _is_label(value: Any) -> bool:
    return is_text(value) or value is None or isinstance(value, int | float)


def _is_index(value: Any) -> bool:
    """Tell whether this is a whole number, which may be written as text: keys always are."""
    if isinstance(value, str):
        return value.isascii() and value.isdecimal() and len(value) < 10
    return COUNT.holds(value)


SIZE, COUNT = whole_number(1), whole_number()
NOT_NEGATIVE = Check(
    lambda value: POSITIVE.holds(value) or (value == 0 and value is not False),
    "a number, 0 or more",
)

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

# null is the default for all but the sizes.
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
    "initializer_range": NOT_NEGATIVE,
    "layer_norm_eps": POSITIVE,
    "pad_token_id": COUNT,
    "position_embedding_type": TEXT,
    "chunk_size_feed_forward": COUNT,
    "classifier_dropout": PROBABILITY,
    "is_decoder": SWITCH,
    "add_cross_attention": SWITCH,
    "use_cache": SWITCH,
    "tie_word_embeddings": SWITCH,
    "architectures": Check(_texts, "a list of strings"),
    "id2label": Check(_mapping(_is_index, _is_label), "an object of labels by number"),
    "label2id": Check(_mapping(_is_label, _is_index), "an object of labels and their numbers"),
    "num_labels": whole_number(1, 10**6),
    "problem_type": TEXT,
    "pruned_heads": Check(
        _mapping(_is_index, _are_counts), "an object of layers and lists of heads"
    ),
    "extra_embeddings": Check(
        _mapping(_is_table, SIZE.holds), "an object of names without dots, and sizes"
    ),
    "extra_fields": Check(_mapping(is_text, is_text), "an object of names and fields"),
    "emotion_vocab_size": SIZE,
    "syllable_vocab_size": SIZE,
    "model_type": TEXT,
}
