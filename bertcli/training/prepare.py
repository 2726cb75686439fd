"""From a corpus to a folder of training instances.

The corpus is tokenized once, into a file. Each pass over it makes other pairs and other masks. The
instances of all passes are shuffled together and stored in shards. What is decided by chance
depends on the seed, the pass and the document alone, so that the same command gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError, UsageError
from bertcli.hub import sha256
from bertcli.records.records import Reader
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.documents import Documents, tokenized
from bertcli.training.instance_rows import WRITERS, row_type
from bertcli.training.instances import SPECIAL, Instance, Recipe, instance, pairs
from bertcli.training.masking import Masker
from bertcli.training.random_choice import below
from bertcli.training.shards import FORMAT, INDEX, SHARD, VERSION
from bertcli.training.shuffle import Shuffle
from bertcli.training.statistics import Statistics

if TYPE_CHECKING:
    from bertcli.training.instance_rows import Array

TOKENIZER = (
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
OURS = (INDEX, "instances-[0-9]*", *TOKENIZER)  # what the folder holds
Track = Callable[[Iterable[Any]], Iterable[Any]]
Count = Callable[[Iterable[Any], int], Iterable[Any]]
BATCH = 4096  # instances made into rows together


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a folder, as far as instances need it."""

    tokenizer: Tokenizer
    folder: Path
    masker: Masker
    cls: int
    sep: int
    pad: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, folder: Path, recipe: Recipe) -> Vocabulary:
        """Check that the recipe can be followed with this tokenizer.

        Raises ModelError without a [MASK], and UsageError for sequences longer than the limit.
        """
        if tokenizer.limit is not None and recipe.max_length > tokenizer.limit:
            raise UsageError(
                f"--max-length {recipe.max_length} is more than the model's limit of "
                f"{tokenizer.limit} tokens",
                "give a smaller one, or a --model that takes more",
            )
        masker = Masker.of(
            tokenizer, recipe.masked_lm_prob, recipe.max_predictions, whole_word=recipe.whole_word
        )
        ids, roles = tokenizer.special_ids(), tokenizer.roles
        found = (ids[roles[role]] for role in ("cls_token", "sep_token", "pad_token"))
        return cls(tokenizer, folder, masker, *found)


@dataclass
class Making:
    """A run: a corpus in, a folder out. ``statistics`` and ``reader`` hold the counts."""

    reader: Reader
    vocabulary: Vocabulary
    recipe: Recipe
    shard_size: int = 32768
    format: str = "safetensors"
    read: Track = lambda items: items  # shows how far the reading is
    made: Count = lambda items, total: items  # shows how far the making is, in documents

    def __post_init__(self) -> None:
        self.statistics = Statistics(self.vocabulary.masker.mask_id, self.recipe.max_length)

    def fill(self, folder: Path) -> None:
        """Write all files to an empty folder.

        Raises InputError when the corpus has fewer than two documents, or cannot be read.
        """
        spool = folder / "spool"
        spool.mkdir()
        with closing(Documents(spool / "documents")) as documents:
            documents.fill(self.read(tokenized(self.reader, self.vocabulary.tokenizer)))
            enough(documents, self.reader.source.paths)
            rows = cut(self._shuffled(documents, spool), self.shard_size)
            shards = write_shards(rows, folder, self.format)
            counts = {"documents": len(documents), "sentences": documents.sentences}
        shutil.rmtree(spool)
        self._write_index(folder, shards, counts)

    def _shuffled(self, documents: Documents, spool: Path) -> Iterator[Array]:
        """Yield all instances as rows, in random order."""
        kind = row_type(self.recipe.max_length, self.recipe.max_predictions)
        expected = documents.tokens * self.recipe.dupe_factor // (self.recipe.max_length - SPECIAL)
        order = Random(f"{self.recipe.seed}:order")
        shuffle, found = Shuffle(spool, kind, expected, order), self._instances(documents)
        while batch := list(islice(found, BATCH)):
            self.statistics.add(batch)
            shuffle.add(packed(batch, kind, self.vocabulary.pad))
        yield from shuffle

    def _instances(self, documents: Documents) -> Iterator[Instance]:
        """Yield the instances of all passes over the documents."""
        times, vocabulary = self.recipe.dupe_factor, self.vocabulary
        numbers = chain.from_iterable(range(len(documents)) for _ in range(times))
        for step, number in enumerate(self.made(numbers, times * len(documents))):
            rng = Random(f"{self.recipe.seed}:{step}")
            other = partial(another, documents, number)
            for pair in pairs(documents[number], self.recipe, other, rng):
                yield instance(pair, vocabulary.cls, vocabulary.sep, vocabulary.masker, rng)

    def _write_index(
        self, folder: Path, shards: list[dict[str, Any]], counts: dict[str, int]
    ) -> None:
        """Copy the tokenizer's files and write what makes the folder one of instances."""
        vocabulary, recipe = self.vocabulary, self.recipe
        files = [name for name in TOKENIZER if (vocabulary.folder / name).is_file()]
        for name in files:
            shutil.copyfile(vocabulary.folder / name, folder / name)
        index = {
            "format": FORMAT,
            "version": VERSION,
            "max_length": recipe.max_length,
            "max_predictions": recipe.max_predictions,
            "vocab_size": vocabulary.tokenizer.vocabulary_size,
            "pad_token_id": vocabulary.pad,
            "shards": shards,
            "options": asdict(recipe) | {"shard_size": self.shard_size, "format": self.format},
            "statistics": counts | self.statistics.summary(),
            "tokenizer_sha256": {name: sha256(folder / name) for name in files},
        }
        text = json.dumps(index, ensure_ascii=False, indent=2) + "\n"
        (folder / INDEX).write_bytes(text.encode())


def another(documents: Documents, number: int, tokens: int, rng: Random) -> list[int]:
    """Return a stretch of any document but this one."""
    at = below(rng, len(documents) - 1)
    return documents.stretch(at + (at >= number), tokens, partial(below, rng))


def packed(batch: Sequence[Instance], kind: Any, pad: int) -> Array:
    """Return instances as rows of ``kind``."""
    import numpy as np

    rows = np.zeros(len(batch), kind)
    length, most = rows["input_ids"].shape[1], rows["masked_lm_ids"].shape[1]
    rows["input_ids"] = [_filled(item.masked.ids, length, pad) for item in batch]
    rows["masked_lm_positions"] = [_filled(item.masked.positions, most, 0) for item in batch]
    rows["masked_lm_ids"] = [_filled(item.masked.labels, most, 0) for item in batch]
    rows["masked_lm_counts"] = [len(item.masked.positions) for item in batch]
    rows["next_sentence_labels"] = [item.is_random for item in batch]
    rows["lengths"] = [len(item.masked.ids) for item in batch]
    at, firsts = np.arange(length), np.array([[item.first] for item in batch])
    rows["token_type_ids"] = (at >= firsts) & (at < rows["lengths"][:, None])
    return rows


def _filled(values: list[int], length: int, value: int) -> list[int]:
    return values + [value] * (length - len(values))


def enough(documents: Documents, paths: Sequence[str]) -> None:
    """Raise InputError when no instances can be made of the documents of these files."""
    name = ", ".join("stdin" if path == "-" else path for path in paths)
    if len(documents) > 1:
        return
    if not len(documents):
        raise InputError(f"{name}: there is no text in it", "give files with a sentence a line")
    raise InputError(
        f"{name}: there is one document only, so no sentence can come from another",
        "put a blank line between documents, or give JSONL with a document a line",
    )


def cut(parts: Iterator[Array], size: int) -> Iterator[Array]:
    """Yield the same rows in arrays of ``size`` rows; the last one has what is left."""
    import numpy as np

    held: list[Array] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= size:
            joined = np.concatenate(held)
            whole = len(joined) - len(joined) % size
            yield from (joined[at : at + size] for at in range(0, whole, size))
            held = [joined[whole:]]
    if any(map(len, held)):
        yield np.concatenate(held)


def write_shards(parts: Iterator[Array], folder: Path, form: str) -> list[dict[str, Any]]:
    """Write each array as a file, and return what the index says of them."""
    shards = []
    for number, rows in enumerate(parts):
        path = folder / SHARD.format(number=number, format=form)
        with path.open("xb") as file:
            WRITERS[form](file, rows)
        shards.append({"file": path.name, "rows": len(rows), "sha256": sha256(path)})
    return shards
