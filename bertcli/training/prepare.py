"""From a corpus to a folder of training instances: sentence pairs, masked.

    instances.json   the index: lengths, options, statistics, sha256
    instances.bin    the rows, one after the other, as `row_type` says

The corpus is tokenized once, into files. Each pass over a document makes other pairs and other
masks; the rows of all its passes lie together. Random choices depend only on the seed, the
document and the pass, so the same command gives the same bytes.

A text file has one sentence per line and blank lines between documents. In other formats a record
is a document: text with one sentence per line, or a list of sentences; and fields with ids of extra
embeddings for its words.

Sources: Devlin et al. 2018, section 3.1, and `create_instances_from_document` and
`create_masked_lm_predictions` of Google's code, with two changes: a random segment always comes
from another document, and a random token is never a special one.

Python promises the same sequence of `Random.random` for a seed on every machine and in every
version, and promises it of no other method; NumPy promises nothing of the kind. So every random
choice here is built on `Random.random` alone.
"""

from __future__ import annotations

import re
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertcli.engines.engine import Tokens
from bertcli.errors import InputError, ModelError, UsageError, option
from bertcli.formats.registry import TXT
from bertcli.io.paths import input_name, sha256
from bertcli.io.progress import Advance, Show, show_nothing
from bertcli.io.publish import whole_folder
from bertcli.io.streams import size_on_disk
from bertcli.io.typed_json import write_json
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.tokenizer_classes import PREFIX
from bertcli.records.batch import RecordBatch
from bertcli.records.extra_ids import MAX_EXTRA_IDS, sentence_ids
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.tokenizing.batch import EXTRA, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns
from bertcli.tokenizing.run import TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.options import INDEX, PrepareOptions

Array = NDArray[Any]
Ids = Any  # [n, width]: the ids of tokens, and their ids of each extra embedding

# --- documents ---


class Documents:
    """Tokenized documents in two files that are mapped into memory; read in any order.

    One file holds the tokens, int32: each is its id, followed by its id of each extra embedding.
    The other holds where sentences end, int64. The first sentence of each document is in memory.
    Neither file has a name, so a kill leaves nothing.
    """

    def __init__(self, folder: Path, extra: Mapping[str, str]) -> None:
        self.folder, self.extra = folder, extra
        self.fields = dict.fromkeys(extra.values(), 0)  # of documents, with a number for each
        self.largest = np.zeros(1 + len(extra), np.int32)  # id of each kind
        self.starts = array("q", [0])  # the first sentence of each document, and the end
        self.sentences = 0
        self.file = ""  # that is read

    def __len__(self) -> int:
        return len(self.starts) - 1

    def split(self, reader: Reader, block: RecordBatch, first: int) -> Iterator[RecordBatch]:
        """Yield the sentences of records as they are read; a blank one ends a document.

        Each has its part of the ids in the fields of its document. Raises UsageError for a text
        file, which has no fields.
        """
        end = Record("", extra=self.fields)

        def lines_of(record: Record) -> list[Record]:
            lines = record.text if isinstance(record.text, list) else record.text.split("\n")
            ids = [sentence_ids(record, lines, field) for field in self.fields]
            return [
                *(
                    record._replace(text=line, extra=dict(zip(self.fields, values, strict=True)))
                    for line, *values in zip(lines, *ids, strict=True)
                    if line.strip()
                ),
                end,
            ]

        if not len(block):
            return
        before, self.file = self.file, block[0].file
        if before != self.file:
            yield RecordBatch.of([end])
        paths = {input_name(path): path for path in reader.source.paths}
        if reader.format_of(paths[self.file]) != TXT:
            documents = reader.collect(lines_of, block)
            yield RecordBatch.of([*chain.from_iterable(documents)])
        elif not self.fields:
            yield block
        else:
            raise UsageError(
                f"{option('extra')}: {self.file} is read as txt, which has no fields",
                f"{option('input_format', 'csv')}, tsv or jsonl reads fields",
            )

    def fill(self, reader: Reader, tokenizer: Tokenizer, show: Callable[[int], None]) -> None:
        """Add the sentences of a corpus; show their number after each block."""
        width, reader.divide = len(self.largest), self.split
        columns = ExtraColumns(self.extra, dict.fromkeys(self.extra, MAX_EXTRA_IDS))
        names = ("input_ids", "token_type_ids", *columns.needed)
        layout = Layout(columns=names, special_tokens=False)
        place = self.folder
        with TemporaryFile(dir=place) as tokens_file, TemporaryFile(dir=place) as ends_file:
            end = np.zeros(1, np.int64)
            ends_file.write(end.data)  # array.tofile does not say why it failed
            for block in TokenizeRun(reader, tokenizer, layout):
                tokens = Tokens.of(columns.added(block, tokenizer))
                table = np.delete(tokens.columns, 1, 1).astype(np.int32)  # without token types
                self.largest = np.maximum(self.largest, table.reshape(-1, width).max(0, initial=0))
                filled = tokens.lengths > 0  # a sentence without a token is none
                reached = self.sentences + filled.cumsum()
                blank = [not str(text).strip() for text in block.records.texts]
                self.starts.extend(reached[blank].tolist())
                ends = end + tokens.offsets[1:][filled]
                end += len(table)
                tokens_file.write(np.ascontiguousarray(table).data)
                ends_file.write(ends.data)
                self.sentences = int(reached[-1])
                show(self.sentences)
            self.starts.append(self.sentences)
            self.starts = array("q", np.unique(self.starts))
            if end:
                tokens_file.flush()
                ends_file.flush()
                tokens_map = np.memmap(tokens_file, np.int32, "r")
                self.tokens = np.asarray(tokens_map).reshape(-1, width)  # sliced far faster
                self.ends = np.memmap(ends_file, np.int64, "r")

    def __getitem__(self, number: int) -> tuple[np.ndarray, list[int]]:
        """Return the tokens of a document, and where its sentences begin and the last one ends."""
        ends = self.ends[self.starts[number] : self.starts[number + 1] + 1]
        return self.tokens[ends[0] : ends[-1]], (ends - ends[0]).tolist()

    def elsewhere(self, number: int, tokens: int, rng: Random) -> np.ndarray:
        """Return consecutive sentences of a random other document.

        They are at least one, and end with that which reaches this number of ``tokens``.
        """
        other = below(rng, len(self) - 1)
        other += other >= number
        first, stop = self.starts[other], self.starts[other + 1]
        ends = self.ends[first + below(rng, stop - first) : stop + 1]
        last = 1 + int(np.searchsorted(ends[1:-1], ends[0] + tokens))
        return self.tokens[ends[0] : ends[last]]


# --- pairs and masks ---


def below(rng: Random, count: int) -> int:
    """Return one of 0 ... count - 1, each as likely as the others."""
    return int(rng.random() * count)


MASK, KEEP = 0.8, 0.9  # below the first: [MASK]; below the second: the token itself; else another
SPECIAL = 3  # [CLS] A [SEP] B [SEP]
_UNUSED = re.compile(r"\[unused\d+\]")


Pair = tuple[Ids, Ids, bool]  # two segments of text, and whether the second is from another one


def pairs(
    tokens: Ids,
    bounds: Sequence[int],
    options: PrepareOptions,
    other: Callable[[int, Random], Ids],
    rng: Random,
) -> Iterator[Pair]:
    """Yield the pairs of one document, which together use all of its sentences.

    ``bounds`` say where sentences begin, and where the last one ends. ``other`` returns sentences
    of another document: at least one, up to about this many tokens.
    """
    room = options.max_length - SPECIAL
    short = rng.random() < options.short_seq_prob  # mostly, pairs fill all of the room
    target, start, last = 2 + below(rng, room - 1) if short else room, 0, len(bounds) - 1
    while start < last:
        end = start + 1
        while end < last and bounds[end] - bounds[start] < target:
            end += 1
        alone = end - start == 1
        middle = end if alone else start + 1 + below(rng, end - start - 1)
        a = tokens[bounds[start] : bounds[middle]]
        is_random = alone or rng.random() < 0.5
        if is_random:  # the sentences that B did not use come again
            b, start = other(target - len(a), rng), middle
        else:
            b, start = tokens[bounds[middle] : bounds[end]], end
        yield *truncated(a, b, room, rng), is_random


def truncated(a: Ids, b: Ids, room: int, rng: Random) -> tuple[Ids, Ids]:
    """Remove tokens of the longer segment, randomly at its start or end, until both fit."""
    of_a, of_b = range(len(a)), range(len(b))  # what is left of both
    while len(of_a) + len(of_b) > room:
        remaining = slice(1, None) if rng.random() < 0.5 else slice(-1)
        if len(of_b) >= len(of_a):
            of_b = of_b[remaining]
        else:
            of_a = of_a[remaining]
    return a[of_a.start : of_a.stop], b[of_b.start : of_b.stop]


@dataclass(frozen=True)
class InstanceMaker:
    """Makes masked sequences of pairs, with the tokens of one vocabulary.

    A random token is never a special or unused one: no text has these, so they would reveal the
    replacement. (Google's code allows any.)
    """

    options: PrepareOptions
    special: Sequence[int]  # [CLS], [SEP], [PAD] and [MASK]
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
                f"{option('max_length', options.max_length)} is more than the model's limit of "
                f"{tokenizer.limit} tokens",
                f"give a smaller one, or a {option('model')} that takes more",
            )
        ids, roles = tokenizer.special_ids(), tokenizer.roles
        names = [roles[role] for role in ("cls_token", "sep_token", "pad_token", "mask_token")]
        for name in names:
            if name not in ids:
                raise ModelError(
                    f"the vocabulary has no {name}, which instances are made with",
                    f"choose another {option('model')}, or train one with bertcli pretrain vocab",
                )
        vocabulary, added = tokenizer.core.get_vocab(), tokenizer.core.get_added_tokens_decoder()
        outside = {id for id, token in added.items() if token.special} | set(ids.values())
        words = sorted(
            id
            for token, id in vocabulary.items()
            if id not in outside and not _UNUSED.fullmatch(token)
        )
        if not words:
            raise ModelError(
                "the vocabulary has only special tokens", f"choose another {option('model')}"
            )
        pieces = frozenset(id for token, id in vocabulary.items() if token.startswith(PREFIX))
        if options.whole_word and not pieces:
            raise ModelError(
                f"no token begins with {PREFIX}: {option('whole_word')} cannot tell what is "
                "one word",
                f"leave out {option('whole_word')}, or choose a {option('model')} with WordPiece",
            )
        return cls(options, [ids[name] for name in names], words, pieces)

    def fill(self, row: Any, pair: Pair, rng: Random) -> None:
        """Write a pair to an empty row: with its special tokens, masked.

        Masked tokens keep their ids of extra embeddings, as they keep their positions: these ids
        are given, not predicted, and they would hardly be learnt if they never stood where a word
        is predicted. Special tokens have id 0.
        """
        cls, sep, pad, _ = self.special
        a, b, is_random = pair
        first, length = len(a) + 2, len(a) + len(b) + SPECIAL
        tokens = np.zeros((length, a.shape[1]), np.int32)
        tokens[1 : first - 1], tokens[first:-1] = a, b
        tokens[[0, first - 1, -1], 0] = cls, sep, sep
        ids = tokens[:, 0].tolist()
        masked, positions = self.mask(ids, [range(1, first - 1), range(first, length - 1)], rng)
        count = len(positions)
        row["input_ids"][:length], row["input_ids"][length:] = masked, pad
        row["token_type_ids"][first:length] = 1
        row["masked_lm_positions"][:count] = positions
        row["masked_lm_ids"][:count] = [ids[position] for position in positions]
        row["masked_lm_counts"], row["lengths"] = count, length
        row["next_sentence_labels"] = is_random
        extra = [name for name in row.dtype.names if name.startswith(EXTRA)]
        for name, column in zip(extra, tokens.T[1:], strict=True):
            row[name][:length] = column

    def mask(
        self, ids: Sequence[int], segments: Sequence[range], rng: Random
    ) -> tuple[list[int], list[int]]:
        """Return a sequence masked, and the positions to predict, which ascend.

        Only positions in ``segments`` are ever touched.
        """
        options = self.options
        count = min(options.max_predictions, max(1, round(len(ids) * options.masked_lm_prob)))
        words: list[list[int]] = []  # or tokens
        for part in segments:
            for position in part:
                inside = options.whole_word and ids[position] in self.continuing
                if position == part.start or not inside:
                    words.append([])
                words[-1].append(position)
        positions: list[int] = []
        for word in sorted(words, key=lambda _: rng.random()):
            if len(positions) + len(word) <= count:  # a word longer than what is left is skipped
                positions += word
        positions.sort()
        masked = list(ids)
        for position in positions:
            chance = rng.random()
            if chance < MASK:
                masked[position] = self.special[-1]
            elif chance >= KEEP:
                masked[position] = self.replacements[below(rng, len(self.replacements))]
        return masked, positions


# --- the folder ---

ROWS = "instances.bin"
FORMAT = "bertcli-pretrain"
VERSION = 3


def row_type(length: int, predictions: int, extra: Iterable[str] = ()) -> np.dtype[Any]:
    """Return the type of a row of these sizes, with these extra embeddings.

    `L` is the length, `P` the most predictions. A row is one instance.
    """
    return np.dtype(
        [
            ("input_ids", "<i4", (length,)),  # [CLS] A [SEP] B [SEP], masked, then padding [L]
            ("token_type_ids", "u1", (length,)),  # 0 up to the first [SEP], 1 up to the second
            ("lengths", "<i4"),  # tokens; the attention mask is arange(L) < length
            ("masked_lm_positions", "<i4", (predictions,)),  # ascending, then 0 [P]
            ("masked_lm_ids", "<i4", (predictions,)),  # the original tokens, then 0
            ("masked_lm_counts", "<i4"),  # positions in use
            ("next_sentence_labels", "u1"),  # 0: B follows A, 1: B is from another document
            # ids of an extra embedding, 0 for special tokens and padding
            *((EXTRA + name, "<i4", (length,)) for name in extra),
        ]
    )


@dataclass
class PrepareRun:
    """A corpus in, a folder of instances out; ``statistics`` are those of the instances.

    ``extra`` names embeddings, and the fields of documents with the ids of their words.
    """

    reader: Reader
    tokenizer: Tokenizer
    model: Path  # the folder of the tokenizer
    options: PrepareOptions
    folder: Path
    overwrite: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
    statistics: dict[str, Any] = field(init=False)

    def execute(self, show: Show = show_nothing) -> dict[str, Any]:
        """Write the folder, and return the statistics.

        Raises InputError when the corpus has fewer than two documents, or cannot be read,
        OutputError for a folder that is not to be replaced, and ModelError or UsageError for a
        tokenizer that no such instances can be made with.
        """
        options, paths = self.options, self.reader.source.paths
        maker = InstanceMaker.of(self.tokenizer, options)
        inputs: list[str | Path] = [*paths, self.model]
        command = "pretrain prepare"
        with whole_folder(self.folder, command, overwrite=self.overwrite, inputs=inputs) as folder:
            documents = Documents(folder.parent, self.extra)
            size = size_on_disk(paths)

            def show_sentences(count: int) -> None:
                share = self.reader.bytes_read / size if size else None
                show(Advance(count, "sentences", share))

            documents.fill(self.reader, self.tokenizer, show_sentences)
            if len(documents) < 2:
                raise InputError(
                    f"{', '.join(map(input_name, paths))}: fewer than two documents, so no "
                    "sentence can come from another",
                    "give text with one sentence per line and a blank line between documents, or "
                    "JSONL with one document per record",
                )
            sizes = dict(zip(self.extra, (1 + documents.largest[1:]).tolist(), strict=True))
            kind = row_type(options.max_length, options.max_predictions, self.extra)
            count = len(documents)
            with (folder / ROWS).open("xb") as file:
                for number in range(count):
                    other = partial(documents.elsewhere, number)
                    for step in range(number, options.dupe_factor * count, count):
                        rng = Random(f"{options.seed}:{step}")
                        for pair in pairs(*documents[number], options, other, rng):
                            row = np.zeros(1, kind)
                            maker.fill(row[0], pair, rng)
                            file.write(row.tobytes())
                    show(Advance(number, "documents", number / count))
            rows: Array = np.memmap(folder / ROWS, kind, "r")
            tokens, predictions = (int(rows[n].sum()) for n in ("lengths", "masked_lm_counts"))
            self.statistics = {  # tokens include special ones, but no padding
                "documents": count,
                "sentences": documents.sentences,
                "instances": len(rows),
                "tokens": tokens,
                "random_next_share": round(float(rows["next_sentence_labels"].mean()), 6),
                "predictions": predictions,
                "predicted_share": round(predictions / tokens, 6),
            }
            del rows  # or a system that locks open files would move no folder with it
            digests = {ROWS: sha256(folder / ROWS)}
            for path in ModelFolder(self.model).encoder.tokenizer_files:
                digests[path.name] = sha256(shutil.copyfile(path, folder / path.name))
            index = {
                "format": FORMAT,
                "version": VERSION,
                "max_length": options.max_length,
                "max_predictions": options.max_predictions,
                "vocab_size": len(self.tokenizer),
                "pad_token_id": maker.special[2],
                "extra_embeddings": sizes,
                "extra_fields": dict(self.extra),
                "options": asdict(options),
                "statistics": self.statistics,
                "sha256": digests,
            }
            write_json(folder / INDEX, index)
        return self.statistics


def described(statistics: Mapping[str, Any]) -> str:
    """Return statistics as a message."""
    return (
        f"{statistics['instances']:,} instances, {statistics['tokens']:,} tokens, "
        f"{statistics['predicted_share']:.1%} of them masked; second sentence random in "
        f"{statistics['random_next_share']:.1%} of the pairs"
    )
