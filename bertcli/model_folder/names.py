"""The names that tensors have had, and the ONLY table of BERT's old ones. No torch here.

A canonical name is that of a current BERT checkpoint with a head: `bert.embeddings...`,
`bert.encoder...`, `bert.pooler...`, and beside them `cls...`, `classifier...`, `qa_outputs...`. A
BertModel without a head calls its own tensors the same without `bert.`. What other
families call them is on their pages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from bertcli.families.family import Family

# What code around a model puts in front of its names, in any order and number.
WRAPPERS = (
    "module.",  # DataParallel, DistributedDataParallel, DeepSpeed
    "model.",  # Lightning and most training loops
    "_orig_mod.",  # torch.compile
)

# What parts of names were called before.
RENAMED: Mapping[str, str] = {
    "LayerNorm.gamma": "LayerNorm.weight",  # pytorch-pretrained-bert, as TensorFlow has it
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

# Canonical names that are no weights: a model is complete without them.
IGNORED = re.compile(
    r"""bert\.embeddings\.(position_ids|token_type_ids)  # buffers of transformers before 4.31
    | global_step | .*\b(beta[12]_power|adam_[mv]|lamb_[mv]|Adam(_1)?)  # TensorFlow's optimisers
    """,
    re.VERBOSE,
)

# One weight with two names: a checkpoint may hold either or both.
TIED: Mapping[str, str] = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

# The variables of Google's TensorFlow checkpoints, once "/" is ".": the first that matches counts.
# Source: modeling.py, run_pretraining.py, run_classifier.py, run_squad.py of google-research/bert.
TENSORFLOW: tuple[tuple[str, str], ...] = (
    (r"\.layer_(\d+)\.", r".layer.\1."),
    (r"^cls\.squad\.output_weights$", "qa_outputs.weight"),
    (r"^cls\.squad\.output_bias$", "qa_outputs.bias"),
    (r"^output_weights$", "classifier.weight"),
    (r"^output_bias$", "classifier.bias"),
    (r"^cls\.predictions\.output_bias$", "cls.predictions.bias"),
    (r"\.output_weights$", ".weight"),
    (r"\.output_bias$", ".bias"),
    (r"\.kernel$", ".weight"),  # and transposed
    (r"_embeddings$", "_embeddings.weight"),
)

# A head -> how the canonical names of its tensors begin.
HEADS: Mapping[str, str] = {
    "pooler": "bert.pooler.",
    "masked language model": "cls.predictions.",
    "next sentence": "cls.seq_relationship.",
    "classifier": "classifier",  # and before it `classifier_head`, in families that have one
    "question answering": "qa_outputs.",
    "replaced tokens": "discriminator_predictions.",  # of ELECTRA
}


def canonical(name: str, family: Family, kind: str) -> tuple[str, ...]:
    """Return the canonical names of a tensor in a checkpoint; what is unknown stays as it is.

    Several where it holds several, stacked. Two names may map to one, as in a file that holds a
    tensor twice: the caller must look. ``kind`` is the class that is read.
    """
    renamed = name.replace("/", ".")
    for pattern, new in TENSORFLOW:
        renamed = re.sub(pattern, new, renamed)
    while renamed.startswith(WRAPPERS):
        renamed = renamed.partition(".")[2]
    for old, new in RENAMED.items():
        renamed = renamed.replace(old, new)
    return family.ours(renamed, kind)


def ignored(name: str) -> bool:
    """Tell whether the tensor of this canonical name is not a weight of a model."""
    return IGNORED.fullmatch(name) is not None


def heads_in(names: Collection[str]) -> list[str]:
    """List the heads, the pooler among them, that a checkpoint of these canonical names holds."""
    return [head for head, start in HEADS.items() if any(name.startswith(start) for name in names)]
