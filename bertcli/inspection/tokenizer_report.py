"""The tokenizer of a folder: its vocabulary, special tokens and what it does to text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertcli.checkpoints.scan import bert_folder, tokenizer_files
from bertcli.errors import ModelError
from bertcli.files.digests import sha256
from bertcli.tokenizing.model_files import read_settings
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.tokenizing.tokenizer_classes import goes_on


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer, in summary."""

    file: str
    vocabulary_size: int
    largest_id: int
    lower_case: bool | None  # None where its normalizer has no such setting
    special_tokens: dict[str, int]
    limit: int | None
    types_of_pairs: int  # the highest token type that a pair has


def read_tokenizer(folder: Path) -> tuple[TokenizerInfo | None, list[str]]:
    """Read the tokenizer, and its warnings; a missing or broken one is one: there is the rest."""
    try:
        found = Tokenizer.load(folder)
        lower = getattr(found.core.normalizer, "lowercase", None)
        if lower is None:
            lower = read_settings(folder).switch("do_lower_case")
    except ModelError as failed:
        return None, [str(failed)]
    info = TokenizerInfo(
        file=tokenizer_files(bert_folder(folder))[0].name,
        vocabulary_size=len(found),
        largest_id=max(found.core.get_vocab().values(), default=-1),
        lower_case=lower,
        special_tokens=found.special_ids(),
        limit=found.limit,
        types_of_pairs=max(found.core.encode("a", "b").type_ids, default=0),
    )
    return info, [*found.warnings]


def tokenizer_details(folder: Path) -> dict[str, Any]:
    """Return the details of a tokenizer; ModelError when it is missing or broken."""
    found = Tokenizer.load(folder)
    core, vocabulary = found.core, found.core.get_vocab()
    file, continues = tokenizer_files(bert_folder(folder))[0], goes_on(core)
    added = {token.content: index for index, token in core.get_added_tokens_decoder().items()}
    marked = type(core.model).__name__ == "WordPiece"
    continuations = sum(continues(token) and (marked or token not in added) for token in vocabulary)
    return {
        "file": file.name,
        "sha256": sha256(file),
        "model": type(core.model).__name__,
        "normalizer": type(core.normalizer).__name__ if core.normalizer else None,
        "vocabulary_size": len(vocabulary),
        "words": len(vocabulary) - continuations,
        "continuations": continuations,
        "unused": sum(token.startswith("[unused") for token in vocabulary),
        "added_tokens": added,
        "roles": found.roles,
        "special_tokens": found.special_ids(),
        "lower_case": getattr(core.normalizer, "lowercase", None),
        "strip_accents": getattr(core.normalizer, "strip_accents", None),
        "limit": found.limit,
        "truncation_side": found.truncation_side,
        "padding_side": found.padding_side,
    }
