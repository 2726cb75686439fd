"""Names of tensors, and the ONLY table of BERT's old names. Does not import torch.

A canonical name is that of a current BERT checkpoint with a head: `bert.embeddings...`,
`bert.encoder...`, `bert.pooler...`, and beside them `cls...`, `classifier...`, `qa_outputs...`. A
BertModel without a head uses the same names without `bert.`. The names of other families are in
their modules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from bertcli.families.family import Family

# Prefixes that wrappers of a model add to its names, in any order and number.
WRAPPERS = (
    "module.",  # DataParallel, DistributedDataParallel, DeepSpeed
    "model.",  # Lightning and most training loops
    "_orig_mod.",  # torch.compile
)

# Old part of a name -> current one.
OLD_NAME_PARTS: Mapping[str, str] = {
    "LayerNorm.gamma": "LayerNorm.weight",  # pytorch-pretrained-bert, as in TensorFlow
    "LayerNorm.beta": "LayerNorm.bias",
    "dense_act.": "dense.",  # NVIDIA DeepLearningExamples: a layer fused with its activation
    "attention.Wq.": "attention.self.query.",  # classes written after the paper's W^Q, W^K, W^V
    "attention.Wk.": "attention.self.key.",
    "attention.Wv.": "attention.self.value.",
    "attention.self.Wq.": "attention.self.query.",
    "attention.self.Wk.": "attention.self.key.",
    "attention.self.Wv.": "attention.self.value.",
    "embeddings.emotion_embeddings.": "embeddings.extra.emotion.",
    "embeddings.word_embeddings_syllable.": "embeddings.extra.syllable.",
}

# Canonical names of tensors that are not weights: a model is complete without them.
IGNORED = re.compile(
    r"""bert\.embeddings\.(position_ids|token_type_ids)  # buffers of transformers before 4.31
    | global_step | .*\b(beta[12]_power|adam_[mv]|lamb_[mv]|Adam(_1)?)  # TensorFlow's optimisers
    """,
    re.VERBOSE,
)

# One weight with two names: a checkpoint may contain either or both.
TIED: Mapping[str, str] = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

# Pattern of Google's TensorFlow variables, with "." for "/" -> replacement. Source: modeling.py,
# run_pretraining.py, run_classifier.py, run_squad.py of google-research/bert.
TENSORFLOW_NAMES: tuple[tuple[str, str], ...] = (
    (r"\.layer_(\d+)\.", r".layer.\1."),
    (r"^cls\.squad\.output_weights$", "qa_outputs.weight"),
    (r"^cls\.squad\.output_bias$", "qa_outputs.bias"),
    (r"^output_weights$", "classifier.weight"),
    (r"^output_bias$", "classifier.bias"),
    (r"^cls\.predictions\.output_bias$", "cls.predictions.bias"),
    (r"\.output_weights$", ".weight"),
    (r"\.output_bias$", ".bias"),
    (r"\.kernel$", ".weight"),  # also transposed
    (r"_embeddings$", "_embeddings.weight"),
)

# Head -> prefix of the canonical names of its tensors.
HEADS: Mapping[str, str] = {
    "pooler": "bert.pooler.",
    "masked language model": "cls.predictions.",
    "next sentence": "cls.seq_relationship.",
    "classifier": "classifier",  # also `classifier_head`, in families that have one
    "question answering": "qa_outputs.",
    "replaced tokens": "discriminator_predictions.",  # of ELECTRA
}


def canonical_names(name: str, family: Family, architecture: str) -> tuple[str, ...]:
    """Return the canonical names of a checkpoint's tensor; an unknown name is returned unchanged.

    A tensor that stacks several has several names. Two names may map to one, if a file contains a
    tensor twice: the caller must check that. ``architecture`` is the class that is read.
    """
    renamed = name.replace("/", ".")
    for pattern, new in TENSORFLOW_NAMES:
        renamed = re.sub(pattern, new, renamed)
    while renamed.startswith(WRAPPERS):
        renamed = renamed.partition(".")[2]
    for old, new in OLD_NAME_PARTS.items():
        renamed = renamed.replace(old, new)
    return family.our_names(renamed, architecture)


def is_ignored(name: str) -> bool:
    """Return True if the tensor of this canonical name is not a weight of a model."""
    return IGNORED.fullmatch(name) is not None


def heads_in(names: Collection[str]) -> list[str]:
    """Return the heads, including the pooler, in a checkpoint with these canonical names."""
    return [
        head for head, prefix in HEADS.items() if any(name.startswith(prefix) for name in names)
    ]
