"""Prepare a corpus for pretraining: a folder of masked sentence pairs.

    instances.json   the index: lengths, options, statistics, sha256
    instances.bin    the rows, of the type `row_type`

The corpus is tokenized once, into temporary files. Each pass over a document makes other pairs and
masks; the rows of all passes over a document are adjacent. Random choices depend only on the seed,
the document and the pass, so equal commands give equal bytes.

A text file has one sentence per line and blank lines between documents. In other formats, a record
is a document: text with one sentence per line, or a list of sentences; and fields with the ids of
extra embeddings of its words.

Sources: Devlin et al. 2018, section 3.1, and `create_instances_from_document` and
`create_masked_lm_predictions` of Google's code, with two changes: a random segment always comes
from another document, and a random token is never a special one.

Random choices use `Random.random` alone: it is the only method for which Python guarantees the same
sequence in every version and on every machine; NumPy guarantees none.
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

from bertcli.engines.engine import PackedTokens
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
Ids = Any  # int32 [n, 1 + extra embeddings]: ids of tokens, then their ids of each embedding

# --- documents ---


class Documents:
    """Tokenized documents in two mapped files, for access in any order.

    One file has the `Ids` of all tokens, the other the offsets at which sentences end, int64. The
    number of the first sentence of each document is in memory. The files have no names, so a killed
    process leaves no files. ``extra_fields`` maps extra embeddings to fields with their ids.
    """

    def __init__(self, folder: Path, extra_fields: Mapping[str, str]) -> None:
        self.folder = folder
        self.extra_fields = extra_fields
        self.fields = dict.fromkeys(extra_fields.values(), 0)  # field of documents -> any number
        self.largest_ids = np.zeros(1 + len(extra_fields), np.int32)  # of each column of `Ids`
        self.starts = array("q", [0])  # the first sentence of each document, and the end
        self.sentences = 0
        self.file = ""  # the file that is being read

    def __len__(self) -> int:
        return len(self.starts) - 1

    def split(self, reader: Reader, block: RecordBatch, first_row: int) -> Iterator[RecordBatch]:
        """Yield the lines of a block of documents, their sentences; an empty one ends a document.

        Sentences have their share of the ids in the fields of the document. Raises UsageError for a
        text file if fields are needed. `first_row`, which `Reader.divide_by` passes, is not used.
        """
        document_end = Record("", extra=self.fields)

        def sentences_of(record: Record) -> list[Record]:
            lines = record.text if isinstance(record.text, list) else record.text.split("\n")
            ids = [sentence_ids(record, lines, field) for field in self.fields]
            sentences = []
            for line, *values in zip(lines, *ids, strict=True):
                if line.strip():
                    fields = dict(zip(self.fields, values, strict=True))
                    sentences.append(record._replace(text=line, extra=fields))
            sentences.append(document_end)
            return sentences

        if not len(block):
            return
        if block[0].file != self.file:
            yield RecordBatch.of([document_end])
        self.file = block[0].file
        paths = {input_name(path): path for path in reader.source.paths}
        if reader.format_of(paths[self.file]) != TXT:
            documents = reader.collect(sentences_of, block)
            yield RecordBatch.of(list(chain.from_iterable(documents)))
        elif not self.fields:
            yield block
        else:
            raise UsageError(
                f"{option('extra')}: {self.file} is read as txt, which has no fields",
                f"{option('input_format', 'csv')}, tsv or jsonl reads fields",
            )

    def fill(self, reader: Reader, tokenizer: Tokenizer, show: Callable[[int], None]) -> None:
        """Add the sentences of a corpus; show their number after each block."""
        width = len(self.largest_ids)
        reader.divide_by(self.split, "texts")
        columns = ExtraColumns(self.extra_fields, dict.fromkeys(self.extra_fields, MAX_EXTRA_IDS))
        layout_columns = ("input_ids", "token_type_ids", *columns.needed_columns)
        layout = Layout(columns=layout_columns, special_tokens=False)
        folder = self.folder
        with TemporaryFile(dir=folder) as tokens_file, TemporaryFile(dir=folder) as ends_file:
            end = np.zeros(1, np.int64)
            ends_file.write(end.data)  # not array.tofile, whose errors have no reason
            for block in TokenizeRun(reader, tokenizer, layout):
                tokens = PackedTokens.of(columns.add_to(block, tokenizer))
                table = np.delete(tokens.columns, 1, 1).astype(np.int32)  # without token types
                block_maximum = table.reshape(-1, width).max(0, initial=0)
                self.largest_ids = np.maximum(self.largest_ids, block_maximum)
                has_tokens = tokens.lengths > 0  # sentences without tokens are not counted
                counts = self.sentences + has_tokens.cumsum()
                is_document_end = [not str(text).strip() for text in block.records.texts]
                self.starts.extend(counts[is_document_end].tolist())
                ends = end + tokens.offsets[1:][has_tokens]
                end += len(table)
                tokens_file.write(np.ascontiguousarray(table).data)
                ends_file.write(ends.data)
                self.sentences = int(counts[-1])
                show(self.sentences)
            self.starts.append(self.sentences)
            self.starts = array("q", np.unique(self.starts))
            if end:
                tokens_file.flush()
                ends_file.flush()
                tokens_map = np.memmap(tokens_file, np.int32, "r")
                self.tokens = np.asarray(tokens_map).reshape(-1, width)  # slices faster
                self.ends = np.memmap(ends_file, np.int64, "r")

    def __getitem__(self, number: int) -> tuple[np.ndarray, list[int]]:
        """Return the tokens of a document, and the offsets of its sentences, with the end."""
        ends = self.ends[self.starts[number] : self.starts[number + 1] + 1]
        return self.tokens[ends[0] : ends[-1]], (ends - ends[0]).tolist()

    def random_sentences(self, number: int, min_tokens: int, rng: Random) -> np.ndarray:
        """Return consecutive sentences of a random document other than ``number``.

        That is one sentence, and more until they have ``min_tokens`` or the document ends.
        """
        other_document = random_below(rng, len(self) - 1)
        other_document += other_document >= number
        start = self.starts[other_document]
        stop = self.starts[other_document + 1]
        first_sentence = start + random_below(rng, stop - start)
        ends = self.ends[first_sentence : stop + 1]
        count = 1 + int(np.searchsorted(ends[1:-1], ends[0] + min_tokens))
        return self.tokens[ends[0] : ends[count]]


# --- pairs and masks ---


def random_below(rng: Random, count: int) -> int:
    """Return a random number from 0 to count - 1, uniformly distributed."""
    return int(rng.random() * count)


# A masked token becomes [MASK] for random numbers below 0.8, stays for those below 0.9, and becomes
# a random token for others.
MASK_BELOW = 0.8
KEEP_BELOW = 0.9
SPECIAL_TOKENS_PER_PAIR = 3  # [CLS] A [SEP] B [SEP]
UNUSED_TOKEN = re.compile(r"\[unused\d+\]")


Pair = tuple[Ids, Ids, bool]  # segments A and B; True if B comes from another document


def sentence_pairs(
    tokens: Ids,
    bounds: Sequence[int],
    options: PrepareOptions,
    random_sentences: Callable[[int, Random], Ids],
    rng: Random,
) -> Iterator[Pair]:
    """Yield the pairs of a document, which together use all of its sentences.

    ``bounds`` has the offsets of the sentences, with the end. ``random_sentences`` returns
    sentences of another document: at least one, and about as many tokens as its argument.
    """
    max_tokens = options.max_length - SPECIAL_TOKENS_PER_PAIR
    target = max_tokens
    if rng.random() < options.short_seq_prob:
        target = 2 + random_below(rng, max_tokens - 1)
    start = 0  # of the next pair, as the number of a sentence
    sentence_count = len(bounds) - 1
    while start < sentence_count:
        end = start + 1
        while end < sentence_count and bounds[end] - bounds[start] < target:
            end += 1
        is_single = end - start == 1
        middle = end if is_single else start + 1 + random_below(rng, end - start - 1)
        a = tokens[bounds[start] : bounds[middle]]
        is_random = is_single or rng.random() < 0.5
        if is_random:
            b = random_sentences(target - len(a), rng)
            start = middle  # the sentences that B did not use are in the next pair
        else:
            b = tokens[bounds[middle] : bounds[end]]
            start = end
        a, b = truncate_pair(a, b, max_tokens, rng)
        yield a, b, is_random


def truncate_pair(a: Ids, b: Ids, max_tokens: int, rng: Random) -> tuple[Ids, Ids]:
    """Remove tokens of the longer segment, randomly at its start or end, until both fit."""
    kept_a = range(len(a))
    kept_b = range(len(b))
    while len(kept_a) + len(kept_b) > max_tokens:
        remaining = slice(1, None) if rng.random() < 0.5 else slice(-1)
        if len(kept_b) >= len(kept_a):
            kept_b = kept_b[remaining]
        else:
            kept_a = kept_a[remaining]
    return a[kept_a.start : kept_a.stop], b[kept_b.start : kept_b.stop]


@dataclass(frozen=True)
class InstanceMaker:
    """Makes masked sequences from pairs, with the tokens of one vocabulary.

    A random token is never special or unused: texts do not contain these, so they would reveal the
    replacement. (Google's code allows any token.)
    """

    options: PrepareOptions
    special_ids: Sequence[int]  # of [CLS], [SEP], [PAD] and [MASK]
    replacement_ids: Sequence[int]  # candidates for a random token
    continuing_ids: frozenset[int]  # of tokens that continue a word

    @classmethod
    def of(cls, tokenizer: Tokenizer, options: PrepareOptions) -> InstanceMaker:
        """Create the maker for a tokenizer.

        Raises ModelError if special tokens or words are missing, UsageError for a length above the
        model's limit.
        """
        if tokenizer.limit is not None and options.max_length > tokenizer.limit:
            raise UsageError(
                f"{option('max_length', options.max_length)} is more than the model's limit of "
                f"{tokenizer.limit} tokens",
                f"give a smaller one, or a {option('model')} that takes more",
            )
        ids = tokenizer.special_ids()
        roles = ("cls_token", "sep_token", "pad_token", "mask_token")
        special_tokens = [tokenizer.roles[role] for role in roles]
        for token in special_tokens:
            if token not in ids:
                raise ModelError(
                    f"the vocabulary has no {token}, which instances are made with",
                    f"choose another {option('model')}, or train one with bertcli pretrain vocab",
                )
        vocabulary = tokenizer.core.get_vocab()
        added = tokenizer.core.get_added_tokens_decoder()
        special_ids = {id for id, token in added.items() if token.special} | set(ids.values())
        words = sorted(
            id
            for token, id in vocabulary.items()
            if id not in special_ids and not UNUSED_TOKEN.fullmatch(token)
        )
        if not words:
            raise ModelError(
                "the vocabulary has only special tokens", f"choose another {option('model')}"
            )
        continuing_ids = frozenset(
            id for token, id in vocabulary.items() if token.startswith(PREFIX)
        )
        if options.whole_word and not continuing_ids:
            raise ModelError(
                f"no token begins with {PREFIX}: {option('whole_word')} cannot tell what is "
                "one word",
                f"leave out {option('whole_word')}, or choose a {option('model')} with WordPiece",
            )
        return cls(options, [ids[token] for token in special_tokens], words, continuing_ids)

    def fill(self, row: Any, pair: Pair, rng: Random) -> None:
        """Write a masked pair with its special tokens to an empty row.

        Masked tokens keep their ids of extra embeddings, which are inputs, not targets: otherwise
        these embeddings would never be trained where a token is predicted. Special tokens have the
        extra id 0.
        """
        cls, sep, pad, _ = self.special_ids
        a, b, is_random = pair
        b_start = len(a) + 2
        length = len(a) + len(b) + SPECIAL_TOKENS_PER_PAIR
        tokens = np.zeros((length, a.shape[1]), np.int32)
        tokens[1 : b_start - 1] = a
        tokens[b_start:-1] = b
        tokens[[0, b_start - 1, -1], 0] = cls, sep, sep
        ids = tokens[:, 0].tolist()
        segments = [range(1, b_start - 1), range(b_start, length - 1)]
        masked, positions = self.mask(ids, segments, rng)
        count = len(positions)
        row["input_ids"][:length] = masked
        row["input_ids"][length:] = pad
        row["token_type_ids"][b_start:length] = 1
        row["masked_lm_positions"][:count] = positions
        row["masked_lm_ids"][:count] = [ids[position] for position in positions]
        row["masked_lm_counts"] = count
        row["lengths"] = length
        row["next_sentence_labels"] = is_random
        extra_names = [name for name in row.dtype.names if name.startswith(EXTRA)]
        for name, column in zip(extra_names, tokens.T[1:], strict=True):
            row[name][:length] = column

    def mask(
        self, ids: Sequence[int], segments: Sequence[range], rng: Random
    ) -> tuple[list[int], list[int]]:
        """Return the masked ids, and the positions to predict in ascending order.

        Only positions in ``segments`` are masked.
        """
        options = self.options
        count = min(options.max_predictions, max(1, round(len(ids) * options.masked_lm_prob)))
        words: list[list[int]] = []  # the positions of words, or of single tokens
        for segment in segments:
            for position in segment:
                continues = options.whole_word and ids[position] in self.continuing_ids
                if position == segment.start or not continues:
                    words.append([])
                words[-1].append(position)
        positions: list[int] = []
        for word in sorted(words, key=lambda _: rng.random()):
            if len(positions) + len(word) <= count:  # words that do not fit are skipped
                positions += word
        positions.sort()
        masked = list(ids)
        for position in positions:
            chance = rng.random()
            if chance < MASK_BELOW:
                masked[position] = self.special_ids[-1]
            elif chance >= KEEP_BELOW:
                masked[position] = self.replacement_ids[
                    random_below(rng, len(self.replacement_ids))
                ]
        return masked, positions


# --- the folder ---

ROWS_FILE = "instances.bin"
FORMAT = "bertcli-pretrain"
VERSION = 3


def row_type(length: int, predictions: int, extra_embeddings: Iterable[str] = ()) -> np.dtype[Any]:
    """Return the dtype of a row: one instance, with the ids of these extra embeddings.

    `length` (`L`) and `predictions` (`P`) are the maximum numbers of tokens and of masked tokens.
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
            *((EXTRA + name, "<i4", (length,)) for name in extra_embeddings),
        ]
    )


@dataclass
class PrepareRun:
    """Prepares a folder of instances from a corpus; ``statistics`` describe the instances.

    ``extra_fields`` maps extra embeddings to the fields of documents with the ids of their words.
    """

    reader: Reader
    tokenizer: Tokenizer
    model: Path  # the folder of the tokenizer
    options: PrepareOptions
    folder: Path
    overwrite: bool = False
    extra_fields: Mapping[str, str] = field(default_factory=dict)
    statistics: dict[str, Any] = field(init=False)

    def execute(self, show: Show = show_nothing) -> dict[str, Any]:
        """Write the folder, and return the statistics.

        Raises InputError if the corpus has fewer than two documents or cannot be read, OutputError
        for a folder that must not be replaced, and ModelError or UsageError for an unsuitable
        tokenizer.
        """
        options = self.options
        paths = self.reader.source.paths
        maker = InstanceMaker.of(self.tokenizer, options)
        inputs: list[str | Path] = [*paths, self.model]
        command = "pretrain prepare"
        with whole_folder(self.folder, command, overwrite=self.overwrite, inputs=inputs) as folder:
            documents = Documents(folder.parent, self.extra_fields)
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
            sizes = dict(
                zip(self.extra_fields, (1 + documents.largest_ids[1:]).tolist(), strict=True)
            )
            dtype = row_type(options.max_length, options.max_predictions, self.extra_fields)
            count = len(documents)
            with (folder / ROWS_FILE).open("xb") as file:
                for number in range(count):
                    tokens, bounds = documents[number]
                    random_sentences = partial(documents.random_sentences, number)
                    for step in range(number, options.dupe_factor * count, count):
                        rng = Random(f"{options.seed}:{step}")
                        for pair in sentence_pairs(tokens, bounds, options, random_sentences, rng):
                            row = np.zeros(1, dtype)
                            maker.fill(row[0], pair, rng)
                            file.write(row.tobytes())
                    show(Advance(number, "documents", number / count))
            rows: Array = np.memmap(folder / ROWS_FILE, dtype, "r")
            token_count = int(rows["lengths"].sum())
            predictions = int(rows["masked_lm_counts"].sum())
            self.statistics = {  # tokens include special tokens, not padding
                "documents": count,
                "sentences": documents.sentences,
                "instances": len(rows),
                "tokens": token_count,
                "random_next_share": round(float(rows["next_sentence_labels"].mean()), 6),
                "predictions": predictions,
                "predicted_share": round(predictions / token_count, 6),
            }
            del rows  # Windows cannot move a folder with an open file
            digests = {ROWS_FILE: sha256(folder / ROWS_FILE)}
            for path in ModelFolder(self.model).encoder.tokenizer_files:
                digests[path.name] = sha256(shutil.copyfile(path, folder / path.name))
            index = {
                "format": FORMAT,
                "version": VERSION,
                "max_length": options.max_length,
                "max_predictions": options.max_predictions,
                "vocab_size": len(self.tokenizer),
                "pad_token_id": maker.special_ids[2],
                "extra_embeddings": sizes,
                "extra_fields": dict(self.extra_fields),
                "options": asdict(options),
                "statistics": self.statistics,
                "sha256": digests,
            }
            write_json(folder / INDEX, index)
        return self.statistics


def statistics_message(statistics: Mapping[str, Any]) -> str:
    """Return statistics as a message."""
    return (
        f"{statistics['instances']:,} instances, {statistics['tokens']:,} tokens, "
        f"{statistics['predicted_share']:.1%} of them masked; second sentence random in "
        f"{statistics['random_next_share']:.1%} of the pairs"
    )
