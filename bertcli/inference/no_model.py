"""A model that is no network: the tokens of a text say all that is to be said of it.

It is opened as any other: weights of terms from a table need no more than token ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcli.inference.progress import Ran
from bertcli.inference.runner import Finish, Tokens, Work
from bertcli.inference.runtime import UNLIMITED, ModelSpec, Runtime
from bertcli.models.config import BertConfig
from bertcli.tokenizing.tokenizer import Tokenizer

TYPES = 256  # no token type makes a difference


@dataclass(frozen=True)
class NoModelRunner:
    """Runs nothing."""

    busy = True
    threads = 1

    def run(self, texts: Tokens, finish: Finish, budget: int | None = None) -> Work:
        """Return nothing of each text, [0, 2]."""
        yield Ran(len(texts), len(texts.ids))
        return [np.zeros((0, 2), np.float32)] * len(texts)


@dataclass(frozen=True)
class NoModelRuntime(Runtime):
    """A tokenizer alone."""

    @classmethod
    def open(cls, spec: ModelSpec, tokenizer: Tokenizer) -> NoModelRuntime:
        """Open nothing but what is given."""
        config = BertConfig(  # the sizes that others ask for
            vocab_size=tokenizer.vocabulary_size,
            hidden_size=1,
            num_hidden_layers=0,
            num_attention_heads=1,
            max_position_embeddings=UNLIMITED,
            type_vocab_size=TYPES,
        )
        return cls(spec, tokenizer, config, NoModelRunner(), ("cpu",), 1)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the numbers of this runner, for manifests."""
        return {"backend": "none", "dtype": "float32", "device": "cpu"}
