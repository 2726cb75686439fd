"""From a corpus to a folder of training instances.

The corpus is tokenized once, into files. Each pass over it makes other pairs and other masks. The
instances of all passes are rows of one file, which are stored in shards in random order. Random
choices depend only on the seed, the pass and the document, so the same command gives the same
bytes.

A text file has one sentence per line and blank lines between documents. In other formats a record
is a document: text with one sentence per line, or a list of sentences; and fields with ids of extra
embeddings for its words.
"""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import TOKENIZER_PARTS, bert_folder, tokenizer_files
from bertcli.errors import InputError, UsageError
from bertcli.files.atomic import whole_folder
from bertcli.files.paths import input_name, sha256
from bertcli.files.safetensors import write_arrays
from bertcli.files.streams import size_on_disk
from bertcli.inference.progress import Advance
from bertcli.inference.runner import Tokens
from bertcli.records.extra_ids import MOST, sentence_ids
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.records.windows import ahead, windows
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.extra_columns import ExtraColumns
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.instances import (
    FORMAT,
    INDEX,
    SHARD,
    VERSION,
    WITH_EXTRA,
    Array,
    InstanceMaker,
    below,
    pairs,
    row_type,
)
from bertcli.training.options import PrepareOptions, in_batches

# --- documents ---

END = Record("")  # between documents
WINDOW = 4096  # sentences tokenized together


def sentences(reader: Reader, fields: Sequence[str] = ()) -> Iterator[list[Record]]:
    """Yield the sentences of a corpus as they are read; a blank one ends a document.

    Each has its part of the ids in these fields of its document. Raises UsageError for a text
    file, which has no fields.
    """

    def split(_: int, record: Record) -> list[Record]:
        lines = record.text if isinstance(record.text, list) else record.text.split("\n")
        ids = [sentence_ids(record, lines, field) for field in fields]
        return [
            *(
                record._replace(text=line, extra=dict(zip(fields, values, strict=True)))
                for line, *values in zip(lines, *ids, strict=True)
                if line.strip()
            ),
            END,
        ]

    paths = {input_name(path): path for path in reader.source.paths}
    file = ""
    for block in filter(None, reader.blocks()):
        before = [] if block[0].file == file else [END]
        file = block[0].file
        if reader.format_of(paths[file]) != "txt":
            documents = reader.collect(enumerate(block), split)
            yield [*before, *chain.from_iterable(documents)]
        elif not fields:
            yield [*before, *block]
        else:
            raise UsageError(
                f"--extra: {file} is read as txt, which has no fields",
                "--input-format csv, tsv or jsonl reads fields",
            )
    yield [END]


class Documents:
    """Tokenized documents in two files that are mapped into memory; read in any order.

    One file holds the tokens, int32: each is its id, followed by its id of each extra embedding.
    The other holds where sentences end, int64. The first sentence of each document is in memory.
    """

    def __init__(self, folder: Path, extra: Mapping[str, str]) -> None:
        self.folder, self.extra = folder, extra
        self.largest = np.zeros(1 + len(extra), np.int32)  # id of each kind
        self.starts = array("q", [0])  # the first sentence of each document, and the end
        self.sentences = 0

    def __len__(self) -> int:
        return len(self.starts) - 1

    def fill(self, reader: Reader, tokenizer: Tokenizer) -> Iterator[int]:
        """Add the sentences of a corpus; yield their number after each window."""
        fields, width = tuple(dict.fromkeys(self.extra.values())), len(self.largest)
        columns = ExtraColumns(self.extra, dict.fromkeys(self.extra, MOST))
        names = ("input_ids", "token_type_ids", *columns.needed)
        layout = Layout(columns=names, special_tokens=False)

        def tokenized(records: Sequence[Record]) -> tuple[Array, Tokens]:
            """Return which of the records are sentences, and the tokens of those."""
            filled = [bool(str(record.text).strip()) for record in records]
            texts = [record for record, real in zip(records, filled, strict=True) if real]
            items = columns.added(tokenizer.encode_records(texts, layout), tokenizer)
            return np.array(filled), Tokens.of(items)

        files = self.folder / "tokens", self.folder / "ends"
        with files[0].open("xb") as tokens_file, files[1].open("xb") as ends_file:
            end = np.zeros(1, np.int64)
            end.tofile(ends_file)
            for filled, tokens in ahead(windows(sentences(reader, fields), WINDOW), tokenized):
                table = np.stack([tokens.ids, *tokens.extra.values()], 1).astype(np.int32)
                self.largest = np.maximum(self.largest, table.reshape(-1, width).max(0, initial=0))
                counts = filled.astype(np.int64)  # a sentence without a token is none
                counts[filled] = tokens.lengths > 0
                reached = self.sentences + counts.cumsum()
                for first in reached[~filled].tolist():
                    if first > self.starts[-1]:
                        self.starts.append(first)
                ends = end + tokens.offsets[1:][tokens.lengths > 0]
                end += len(table)
                table.tofile(tokens_file)
                ends.tofile(ends_file)
                self.sentences = int(reached[-1])
                yield self.sentences
        if end:
            self.tokens = np.memmap(files[0], np.int32, "r").reshape(-1, width)
            self.ends = np.memmap(files[1], np.int64, "r")

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

    def close(self) -> None:
        """Let go of the files."""
        del self.tokens, self.ends


# --- the folder ---

OURS = (INDEX, "instances-[0-9]*", *TOKENIZER_PARTS)  # names of the files in the folder
MOSTLY = 0.75  # share of random pairs above which a warning is shown; half is intended


@dataclass
class PrepareRun:
    """A corpus in, a folder of instances out; ``statistics`` are those of the instances.

    ``extra`` names embeddings, and the fields of documents with the ids of their words. Raises
    ModelError or UsageError for a tokenizer that no such instances can be made with.
    """

    reader: Reader
    tokenizer: Tokenizer
    model: Path  # the folder of the tokenizer
    options: PrepareOptions
    folder: Path
    overwrite: bool = False
    shard_size: int = 32768
    extra: Mapping[str, str] = field(default_factory=dict)
    statistics: dict[str, Any] = field(init=False)
    sizes: dict[str, int] = field(init=False)  # of the extra embeddings

    def __post_init__(self) -> None:
        self.maker = InstanceMaker.of(self.tokenizer, self.options)

    def __iter__(self) -> Iterator[Advance]:
        """Yield how far the run is; at the end the folder is there.

        Raises InputError when the corpus has fewer than two documents, or cannot be read, and
        OutputError for a folder that is not to be replaced.
        """
        options, paths = self.options, self.reader.source.paths
        inputs: list[str | Path] = [*paths, self.model]
        with whole_folder(self.folder, OURS, overwrite=self.overwrite, inputs=inputs) as folder:
            spool = folder / "spool"
            spool.mkdir()
            documents = Documents(spool, self.extra)
            size = size_on_disk(paths)
            for sentences in documents.fill(self.reader, self.tokenizer):
                share = self.reader.bytes_read / size if size else None
                yield Advance(sentences, "sentences", share)
            require_two(documents, self.reader)
            self.sizes = dict(zip(self.extra, (1 + documents.largest[1:]).tolist(), strict=True))
            kind = row_type(options.max_length, options.max_predictions, self.extra)
            yield from self._make(documents, spool / "rows", kind)
            rows: Array = np.memmap(spool / "rows", kind, "r")
            self.statistics = {
                "documents": len(documents),
                "sentences": documents.sentences,
                **statistics(rows),
            }
            order = shuffled(len(rows), Random(f"{options.seed}:order"))
            shards = []
            for number, chosen in enumerate(in_batches(order, self.shard_size)):
                shard, path = rows[chosen], folder / SHARD.format(number=number)
                with path.open("xb") as file:
                    write_arrays(file, {name: shard[name] for name in kind.names or ()})
                shards.append({"file": path.name, "rows": len(shard), "sha256": sha256(path)})
            del rows  # or a system that locks open files would keep it
            documents.close()
            shutil.rmtree(spool)
            self._write_index(folder, shards)

    def _make(self, documents: Documents, path: Path, kind: Any) -> Iterator[Advance]:
        """Write the instances of all passes over the documents to a file."""
        options, total = self.options, self.options.dupe_factor * len(documents)
        with path.open("xb") as file:
            for step in range(total):
                number, rng = step % len(documents), Random(f"{options.seed}:{step}")
                other = partial(documents.elsewhere, number)
                for pair in pairs(*documents[number], options, other, rng):
                    row = np.zeros(1, kind)
                    self.maker.fill(row[0], pair, rng)
                    file.write(row.tobytes())
                yield Advance(step, "documents", step / total)

    def _write_index(self, folder: Path, shards: list[dict[str, Any]]) -> None:
        """Copy the tokenizer's files and write instances.json, the index."""
        options, digests = self.options, dict[str, str]()
        for path in tokenizer_files(bert_folder(self.model)):
            digests[path.name] = sha256(shutil.copyfile(path, folder / path.name))
        index = {
            "format": FORMAT,
            "version": WITH_EXTRA if self.extra else VERSION,
            "max_length": options.max_length,
            "max_predictions": options.max_predictions,
            "vocab_size": len(self.tokenizer),
            "pad_token_id": self.maker.special[2],
            "shards": shards,
            "options": asdict(options) | {"shard_size": self.shard_size, "format": "safetensors"},
            "statistics": self.statistics,
            "tokenizer_sha256": digests,
        }
        if self.extra:
            index |= {"extra_embeddings": self.sizes, "extra_fields": dict(self.extra)}
        text = json.dumps(index, ensure_ascii=False, indent=2) + "\n"
        (folder / INDEX).write_bytes(text.encode())


def require_two(documents: Documents, reader: Reader) -> None:
    """Raise InputError when no instances can be made of the documents that were read."""
    if len(documents) > 1:
        return
    name = ", ".join(input_name(path) for path in reader.source.paths)
    raise InputError(
        f"{name}: fewer than two documents, so no sentence can come from another",
        "give text with one sentence per line and a blank line between documents, or JSONL with "
        "one document per record",
    )


def shuffled(count: int, rng: Random) -> Any:
    """Return the numbers of rows in random order."""
    places = [rng.random() for _ in range(2 * count)][count:]  # as ever, for a seed
    return np.argsort(places, kind="stable")


def statistics(rows: Array) -> dict[str, Any]:
    """Count instances; tokens include special ones, but no padding."""
    tokens, predictions = (int(rows[name].sum()) for name in ("lengths", "masked_lm_counts"))
    return {
        "instances": len(rows),
        "tokens": tokens,
        "random_next_share": round(float(rows["next_sentence_labels"].mean()), 6),
        "predictions": predictions,
        "predicted_share": round(predictions / tokens, 6),
    }


def described(statistics: Mapping[str, Any]) -> str:
    """Return statistics as a message."""
    return (
        f"{statistics['instances']:,} instances, {statistics['tokens']:,} tokens, "
        f"{statistics['predicted_share']:.1%} of them masked; second sentence random in "
        f"{statistics['random_next_share']:.1%} of the pairs"
    )


def doubts(statistics: Mapping[str, Any]) -> str:
    """Return a warning about a corpus that is probably not as intended, or nothing."""
    share = statistics["random_next_share"]
    if share <= MOSTLY:
        return ""
    return (
        f"second sentence random in {share:.0%} of the pairs, as many sentences fill "
        "a sequence alone; give one sentence per line"
    )
