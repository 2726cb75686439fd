"""Training instances: documents to sentence pairs, pairs to masked rows; and the rows on disk.

instances.json               the index: lengths, counts, options, files with their sha256
instances-00000.safetensors  an array a column

stored = Instances(Path("instances"))
batch = stored.rows([3, 17, 4])["input_ids"]  # int32 [3, L]

Letters: `n` rows, `L` the length, `P` the most predictions. A row is one instance:

    input_ids             int32 [n, L]  [CLS] A [SEP] B [SEP], masked, then padding
    token_type_ids        uint8 [n, L]  0 up to the first [SEP], 1 up to the second, then 0
    lengths               int32 [n]     tokens; the attention mask is arange(L) < length
    masked_lm_positions   int32 [n, P]  ascending, then 0
    masked_lm_ids         int32 [n, P]  the original tokens, then 0
    masked_lm_counts      int32 [n]     number of positions in use
    next_sentence_labels  uint8 [n]     0: B follows A, 1: B is from another document
    extra.NAME            int32 [n, L]  ids of an extra embedding, 0 for special tokens and padding

Sources: Devlin et al. 2018, section 3.1, and `create_instances_from_document` and
`create_masked_lm_predictions` of Google's code, with two changes: a random segment always comes
from another document, and a random token is never a special one.

Python promises the same sequence of `Random.random` for a seed on every machine and in every
version, and promises it of no other method; NumPy promises nothing of the kind. So every random
choice here is built on `Random.random` alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertcli.errors import InputError, ModelError, UsageError
from bertcli.families.family import CHECKS
from bertcli.files.safetensors import NAMES, read_header
from bertcli.files.typed_json import TEXT, JsonObject, read_value, whole_number
from bertcli.hub import TOKENIZER_FILES
from bertcli.tokenizing.columns import EXTRA
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.tokenizing.tokenizer_classes import PREFIX
from bertcli.training.options import PrepareOptions
from bertcli.vectors.run_folder import refuse_changed_file

T = TypeVar("T")
Array = NDArray[Any]
Tokens = Any  # [n, width]: the ids of tokens, and their ids of each extra embedding
AGAIN = "run bertcli pretrain prepare again"


def below(rng: Random, count: int) -> int:
    """Return one of 0 ... count - 1, each as likely as the others."""
    return int(rng.random() * count)


def between(rng: Random, low: int, high: int) -> int:
    """Return one of low ... high, each as likely as the others."""
    return low + below(rng, high - low + 1)


def drawn(rng: Random, items: Sequence[T]) -> Iterator[T]:
    """Yield all items in random order; each costs one step, so a few of many cost little."""
    left = list(items)
    while left:
        place = below(rng, len(left))
        left[place], left[-1] = left[-1], left[place]
        yield left.pop()


MASK, KEEP = 0.8, 0.9  # below the first: [MASK]; below the second: the token itself; else another
SPECIAL = 3  # [CLS] A [SEP] B [SEP]
_UNUSED = re.compile(r"\[unused\d+\]")


class Pair(NamedTuple):
    """Two segments of text."""

    a: Tokens
    b: Tokens
    is_random: bool  # whether B is from another document


def pairs(
    tokens: Tokens,
    bounds: Sequence[int],
    options: PrepareOptions,
    other: Callable[[int, Random], Tokens],
    rng: Random,
) -> Iterator[Pair]:
    """Yield the pairs of one document, which together use all of its sentences.

    ``bounds`` say where sentences begin, and where the last one ends. ``other`` returns sentences
    of another document: at least one, up to about this many tokens.
    """
    room = options.max_length - SPECIAL
    short = rng.random() < options.short_seq_prob  # mostly, pairs fill all of the room
    target, start, last = between(rng, 2, room) if short else room, 0, len(bounds) - 1
    while start < last:
        end = start + 1
        while end < last and bounds[end] - bounds[start] < target:
            end += 1
        alone = end - start == 1
        middle = end if alone else between(rng, start + 1, end - 1)
        a = tokens[bounds[start] : bounds[middle]]
        is_random = alone or rng.random() < 0.5
        if is_random:  # the sentences that B did not use come again
            b, start = other(target - len(a), rng), middle
        else:
            b, start = tokens[bounds[middle] : bounds[end]], end
        yield Pair(*truncated(a, b, room, rng), is_random)


def truncated(a: Tokens, b: Tokens, room: int, rng: Random) -> tuple[Tokens, Tokens]:
    """Remove tokens of the longer segment, randomly at its start or end, until both fit."""
    start_a, end_a, start_b, end_b = 0, len(a), 0, len(b)
    while (size_a := end_a - start_a) + (size_b := end_b - start_b) > room:
        at_start = rng.random() < 0.5
        if size_b >= size_a:
            start_b, end_b = (start_b + 1, end_b) if at_start else (start_b, end_b - 1)
        else:
            start_a, end_a = (start_a + 1, end_a) if at_start else (start_a, end_a - 1)
    return a[start_a:end_a], b[start_b:end_b]


@dataclass(frozen=True)
class InstanceMaker:
    """Makes masked sequences of pairs, with the tokens of one vocabulary.

    A random token is never a special or unused one: no text has these, so they would reveal the
    replacement. (Google's code allows any.)
    """

    options: PrepareOptions
    special: tuple[int, int, int, int]  # [CLS], [SEP], [PAD] and [MASK]
    replacements: Sequence[int]  # candidates for a random token
    continuing: frozenset[int]  # tokens that continue a word

    @classmethod
    def of(cls, tokenizer: Tokenizer, options: PrepareOptions) -> InstanceMaker:
        """Return that of a tokenizer.

        Raises ModelError where special tokens or words are missing, UsageError for a length over
        the limit.
        """
        if tokenizer.limit is not None and options.max_length > tokenizer.limit:
            raise UsageError(
                f"--max-length {options.max_length} is more than the model's limit of "
                f"{tokenizer.limit} tokens",
                "give a smaller one, or a --model that takes more",
            )
        ids, roles = tokenizer.special_ids(), tokenizer.roles
        names = [roles[role] for role in ("cls_token", "sep_token", "pad_token", "mask_token")]
        for name in names:
            if name not in ids:
                raise ModelError(
                    f"the vocabulary has no {name}, which instances are made with",
                    "choose another --model, or train a vocabulary with bertcli pretrain vocab",
                )
        core = tokenizer.core
        added = {id for id, token in core.get_added_tokens_decoder().items() if token.special}
        outside = added | set(ids.values())
        vocabulary = core.get_vocab()
        words = sorted(
            id
            for token, id in vocabulary.items()
            if id not in outside and not _UNUSED.fullmatch(token)
        )
        if not words:
            raise ModelError("the vocabulary has only special tokens", "choose another --model")
        pieces = frozenset(id for token, id in vocabulary.items() if token.startswith(PREFIX))
        if options.whole_word and not pieces:
            raise ModelError(
                f"no token begins with {PREFIX}: --whole-word cannot tell what is one word",
                "leave out --whole-word, or choose a --model with WordPiece",
            )
        cls_id, sep, pad, mask = map(ids.__getitem__, names)
        return cls(options, (cls_id, sep, pad, mask), words, pieces)

    def fill(self, row: Any, pair: Pair, rng: Random) -> None:
        """Write a pair to an empty row: with its special tokens, masked.

        Masked tokens keep their ids of extra embeddings, as they keep their positions: these ids
        are given, not predicted, and they would hardly be learnt if they never stood where a word
        is predicted. Special tokens have id 0.
        """
        cls, sep, pad, _ = self.special
        first, length = len(pair.a) + 2, len(pair.a) + len(pair.b) + SPECIAL
        tokens = np.zeros((length, pair.a.shape[1]), np.int32)
        tokens[1 : first - 1], tokens[first:-1] = pair.a, pair.b
        tokens[[0, first - 1, -1], 0] = cls, sep, sep
        ids = tokens[:, 0].tolist()
        masked, positions = self.mask(ids, [range(1, first - 1), range(first, length - 1)], rng)
        count = len(positions)
        row["input_ids"][:length], row["input_ids"][length:] = masked, pad
        row["token_type_ids"][first:length] = 1
        row["masked_lm_positions"][:count] = positions
        row["masked_lm_ids"][:count] = [ids[position] for position in positions]
        row["masked_lm_counts"], row["lengths"] = count, length
        row["next_sentence_labels"] = pair.is_random
        extra = [name for name in row.dtype.names if name.startswith(EXTRA)]
        for name, column in zip(extra, tokens.T[1:], strict=True):
            row[name][:length] = column

    def mask(
        self, ids: Sequence[int], segments: Sequence[range], rng: Random
    ) -> tuple[list[int], list[int]]:
        """Return a sequence masked, and the positions to predict, which ascend.

        Only positions in ``segments`` are ever touched.
        """
        options, (*_, mask) = self.options, self.special
        count = min(options.max_predictions, max(1, round(len(ids) * options.masked_lm_prob)))
        positions = sorted(self._chosen(ids, segments, count, rng))
        masked = list(ids)
        for position in positions:
            chance = rng.random()
            if chance < MASK:
                masked[position] = mask
            elif chance >= KEEP:
                masked[position] = self.replacements[below(rng, len(self.replacements))]
        return masked, positions

    def _chosen(
        self, ids: Sequence[int], segments: Sequence[range], count: int, rng: Random
    ) -> list[int]:
        """Choose random positions; a word longer than what is left to choose is skipped."""
        if not self.options.whole_word:
            return [*islice(drawn(rng, [*chain.from_iterable(segments)]), count)]
        words: list[list[int]] = []
        for part in segments:
            for position in part:
                if position == part.start or ids[position] not in self.continuing:
                    words.append([])
                words[-1].append(position)
        chosen: list[int] = []
        for word in drawn(rng, words):
            if len(chosen) + len(word) <= count:
                chosen += word
            if len(chosen) == count:
                break
        return chosen


# --- rows on disk ---


def row_type(length: int, predictions: int, extra: Iterable[str] = ()) -> np.dtype[Any]:
    """Return the type of a row of these sizes, with these extra embeddings."""
    return np.dtype(
        [
            ("input_ids", "<i4", (length,)),
            ("token_type_ids", "u1", (length,)),
            ("lengths", "<i4"),
            ("masked_lm_positions", "<i4", (predictions,)),
            ("masked_lm_ids", "<i4", (predictions,)),
            ("masked_lm_counts", "<i4"),
            ("next_sentence_labels", "u1"),
            *((EXTRA + name, "<i4", (length,)) for name in extra),
        ]
    )


INDEX, FORMAT = "instances.json", "bertcli-pretrain"
VERSION, WITH_EXTRA = 1, 2  # who reads the first alone knows no extra embeddings
SHARD = "instances-{number:05d}.safetensors"


class Instances:
    """The rows of a folder, read on request; memory is that of the rows requested.

    ``extra`` selects extra embeddings by name; None: all. Raises InputError or ModelError when they
    are not there, of another version, have no such extra embedding, or a file has not the shapes
    that the index says. What the files hold is checked by ``verify`` only.
    """

    def __init__(self, folder: Path, extra: Collection[str] | None = None) -> None:
        self.folder, self.index = folder, read_index(folder / INDEX)
        index = self.index
        self.max_length, self.max_predictions, self.vocab_size, self.pad_token_id = (
            index.needed(key, *whole_number())
            for key in ("max_length", "max_predictions", "vocab_size", "pad_token_id")
        )
        sizes = index.checked("extra_embeddings", *CHECKS["extra_embeddings"]) or {}
        fields = index.checked("extra_fields", *CHECKS["extra_fields"]) or {}
        if missing := [name for name in extra or () if name not in sizes]:
            raise InputError(
                f"{folder}: the instances have no ids of the extra embedding {missing[0]}; "
                f"available: {', '.join(sizes) or 'none'}",
                f"prepare them with --extra {missing[0]}=FIELD",
            )
        chosen = sizes if extra is None else extra
        self.extra_embeddings = {name: sizes[name] for name in sizes if name in chosen}
        self.extra_fields = {name: fields[name] for name in self.extra_embeddings}
        self.kind = row_type(self.max_length, self.max_predictions, self.extra_embeddings)
        self.starts, self.files, self.digests = [0], list[dict[str, Array]](), dict[str, Any]()
        for shard in index.entries("shards").objects().values():
            rows = shard.needed("rows", *whole_number(1))
            name = shard.needed("file", *TEXT)
            self.digests[name] = shard.needed("sha256", *TEXT)
            self.files.append(self._mapped(folder / name, rows))
            self.starts.append(self.starts[-1] + rows)

    def _mapped(self, path: Path, rows: int) -> dict[str, Array]:
        """Return the columns of a file, of which only the pages that are read are loaded."""
        if not path.is_file():
            raise InputError(f"{path}: not found, but listed in the index", AGAIN)
        stored = {tensor.name: tensor for tensor in read_header(path)}
        columns: dict[str, Array] = {}
        for name in self.kind.names or ():
            dtype, shape = self.kind[name].base, (rows, *self.kind[name].shape)
            tensor = stored.get(name)
            if tensor is None or (tensor.dtype, tensor.shape) != (NAMES[dtype.str], shape):
                raise InputError(f"{path}: expected {name} as {dtype.name} {list(shape)}", AGAIN)
            columns[name] = np.memmap(path, dtype, "r", tensor.start, shape)
        return columns

    def __len__(self) -> int:
        return self.starts[-1]

    def column(self, name: str, numbers: Any) -> Array:
        """Return a column of rows by their numbers, in that order; IndexError for none of these."""
        places = np.asarray(numbers, np.int64)
        values = np.zeros(len(places), self.kind[name])
        shards = np.searchsorted(self.starts, places, side="right") - 1
        for shard in np.unique(shards).tolist():
            selected = shards == shard
            values[selected] = self.files[shard][name][places[selected] - self.starts[shard]]
        return values

    def rows(self, numbers: Sequence[int]) -> dict[str, Array]:
        """Return rows by their numbers, in that order, as one array a column."""
        return {name: self.column(name, numbers) for name in self.kind.names or ()}

    def verify(self) -> None:
        """Check the sha256 of every file. Raises InputError when one was changed."""
        hashes = self.index.object("tokenizer_sha256")
        tokenizer = {name: hashes.text(name) for name in TOKENIZER_FILES if name in hashes}
        for name, digest in {**tokenizer, **self.digests}.items():
            refuse_changed_file(self.folder / name, digest, InputError, AGAIN)


def read_index(path: Path) -> JsonObject:
    """Return an index of a version that is known; what is in it is checked where it is used."""
    values = read_value(path, InputError, AGAIN)
    if values is None:
        raise InputError(f"{path}: no instances found", "create them with bertcli pretrain prepare")
    where = f"{path}: not an index of instances"
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(where, AGAIN)
    index = JsonObject(values, where, InputError, AGAIN)
    version = index.needed("version", *whole_number())
    if version not in (VERSION, WITH_EXTRA):
        ours = f"{VERSION} and {WITH_EXTRA}"
        raise InputError(f"{path}: version {version} is not supported, only {ours}", AGAIN)
    return index
