"""From a corpus to a folder of training instances.

The corpus is tokenized once, into a file. Each pass over it makes other pairs and other masks. The
instances of all passes are shuffled together and stored in shards. Random choices depend only on
the seed, the pass and the document, so the same command gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints.scan import TOKENIZER_PARTS, bert_folder
from bertcli.errors import InputError, ModelError, UsageError, counted
from bertcli.files.atomic import whole_folder
from bertcli.files.paths import sha256
from bertcli.files.safetensors import write_arrays
from bertcli.files.streams import size_on_disk
from bertcli.inference.progress import Advance
from bertcli.records.reader import Reader
from bertcli.tokenizing.columns import EXTRA
from bertcli.tokenizing.statistics import quantile
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.documents import Documents, tokenized
from bertcli.training.instances import (
    SPECIAL,
    Instance,
    Masker,
    PrepareOptions,
    Token,
    below,
    instance,
    pairs,
)
from bertcli.training.shards import FORMAT, INDEX, SHARD, VERSION, WITH_EXTRA, row_type

if TYPE_CHECKING:
    import numpy as np

    from bertcli.training.shards import Array

TOKENIZER = tuple(dict.fromkeys(("vocab.txt", *TOKENIZER_PARTS)))  # in the order of the index
OURS = (INDEX, "instances-[0-9]*", *TOKENIZER)  # names of the files in the folder
BATCH = 4096  # instances converted to rows together
BUCKET = 16 << 20  # bytes of a file of the shuffle; more only when MOST files are not enough
STEP = 64  # documents between two reports of progress
MOST = 4096  # files of the shuffle, none of which stays open
MOSTLY = 0.75  # share of random pairs above which a warning is shown; half is intended


@dataclass(frozen=True)
class InstanceTokenizer:
    """The tokenizer of a model folder, and what instances need from it."""

    tokenizer: Tokenizer
    folder: Path
    masker: Masker
    cls: int
    sep: int
    pad: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, folder: Path, options: PrepareOptions) -> InstanceTokenizer:
        """Return it. Raises ModelError without [MASK], UsageError for a length over the limit."""
        if tokenizer.limit is not None and options.max_length > tokenizer.limit:
            raise UsageError(
                f"--max-length {options.max_length} is more than the model's limit of "
                f"{tokenizer.limit} tokens",
                "give a smaller one, or a --model that takes more",
            )
        masker = Masker.of(tokenizer, options)
        ids, roles = tokenizer.special_ids(), tokenizer.roles
        around = [roles[role] for role in ("cls_token", "sep_token", "pad_token")]
        if missing := [token for token in around if token not in ids]:
            raise ModelError(
                f"the vocabulary has no {', '.join(missing)}, which instances are made with",
                "choose another --model, or train a vocabulary with bertcli pretrain vocab",
            )
        return cls(tokenizer, folder, masker, *map(ids.__getitem__, around))


@dataclass
class PrepareRun:
    """A corpus in, a folder of instances out; ``statistics`` are those of the instances.

    ``extra`` names embeddings, and the fields of documents with the ids of their words.
    """

    reader: Reader
    tokens: InstanceTokenizer
    options: PrepareOptions
    folder: Path
    overwrite: bool = False
    shard_size: int = 32768
    extra: Mapping[str, str] = field(default_factory=dict)
    statistics: Statistics = field(init=False)
    sizes: dict[str, int] = field(init=False)  # of the extra embeddings

    def __iter__(self) -> Iterator[Advance]:
        """Yield how far the run is; at the end the folder is there.

        Raises InputError when the corpus has fewer than two documents, or cannot be read, and
        OutputError for a folder that is not to be replaced.
        """
        options, paths = self.options, self.reader.source.paths
        self.statistics = Statistics(self.tokens.masker.mask_id, options.max_length)
        inputs: list[str | Path] = [*paths, self.tokens.folder]
        with whole_folder(self.folder, OURS, overwrite=self.overwrite, inputs=inputs) as folder:
            spool = folder / "spool"
            spool.mkdir()
            with closing(Documents(spool / "documents", 1 + len(self.extra))) as documents:
                size = size_on_disk(paths)
                batches = tokenized(self.reader, self.tokens.tokenizer, self.extra)
                for sentences in documents.fill(batches):
                    share = self.reader.bytes_read / size if size else None
                    yield Advance(sentences, "sentences", share)
                require_two(documents, self.reader)
                kind = row_type(options.max_length, options.max_predictions, self.extra)
                passes = documents.tokens * options.dupe_factor
                expected = passes // (options.max_length - SPECIAL)
                shuffle = Shuffle(spool, kind, expected, Random(f"{options.seed}:order"))
                yield from self._make(documents, shuffle)
                counts = {"documents": len(documents), "sentences": documents.sentences}
                largest = zip(self.extra, documents.largest, strict=True)
                self.sizes = {name: 1 + id for name, id in largest}
            shards = []
            for number, rows in enumerate(resized(iter(shuffle), self.shard_size)):
                path = folder / SHARD.format(number=number)
                with path.open("xb") as file:
                    write_arrays(file, {name: rows[name] for name in rows.dtype.names or ()})
                shards.append({"file": path.name, "rows": len(rows), "sha256": sha256(path)})
            shutil.rmtree(spool)
            self._write_index(folder, shards, counts | self.statistics.summary())

    def _make(self, documents: Documents, shuffle: Shuffle) -> Iterator[Advance]:
        """Add the instances of all passes over the documents to the shuffle, and count them."""
        tokens, options = self.tokens, self.options
        total, batch = options.dupe_factor * len(documents), list[Instance]()
        for step in range(total):
            number, rng = step % len(documents), Random(f"{options.seed}:{step}")
            other = partial(another, documents, number)
            for pair in pairs(documents[number], options, other, rng):
                batch.append(instance(pair, tokens.cls, tokens.sep, tokens.masker, rng))
            if len(batch) >= BATCH or step + 1 == total:
                self.statistics.add(batch)
                shuffle.add(as_rows(batch, shuffle.kind, tokens.pad))
                batch = []
            if step % STEP == 0:
                yield Advance(step, "documents", step / total)

    def _write_index(
        self, folder: Path, shards: list[dict[str, Any]], statistics: dict[str, Any]
    ) -> None:
        """Copy the tokenizer's files and write instances.json, the index."""
        tokens, options = self.tokens, self.options
        place = bert_folder(tokens.folder)
        files = [name for name in TOKENIZER if (place / name).is_file()]
        for name in files:
            shutil.copyfile(place / name, folder / name)
        index = {
            "format": FORMAT,
            "version": WITH_EXTRA if self.extra else VERSION,
            "max_length": options.max_length,
            "max_predictions": options.max_predictions,
            "vocab_size": len(tokens.tokenizer),
            "pad_token_id": tokens.pad,
            "shards": shards,
            "options": asdict(options) | {"shard_size": self.shard_size, "format": "safetensors"},
            "statistics": statistics,
            "tokenizer_sha256": {name: sha256(folder / name) for name in files},
        }
        if self.extra:
            index |= {"extra_embeddings": self.sizes, "extra_fields": dict(self.extra)}
        text = json.dumps(index, ensure_ascii=False, indent=2) + "\n"
        (folder / INDEX).write_bytes(text.encode())


def another(documents: Documents, number: int, tokens: int, rng: Random) -> list[Token]:
    """Return sentences of a random other document."""
    other = below(rng, len(documents) - 1)
    return documents.stretch(other + (other >= number), tokens, partial(below, rng))


def as_rows(batch: Sequence[Instance], kind: Any, pad: int) -> Array:
    """Return instances as rows of type ``kind``."""
    import numpy as np

    rows = np.zeros(len(batch), kind)
    length, most = rows["input_ids"].shape[1], rows["masked_lm_ids"].shape[1]

    def filled(values: list[int], length: int, value: int = 0) -> list[int]:
        return values + [value] * (length - len(values))

    masked = [item.masked for item in batch]
    rows["input_ids"] = [filled(item.ids, length, pad) for item in masked]
    rows["masked_lm_positions"] = [filled(item.positions, most) for item in masked]
    rows["masked_lm_ids"] = [filled(item.labels, most) for item in masked]
    rows["masked_lm_counts"] = [len(item.positions) for item in masked]
    rows["next_sentence_labels"] = [item.is_random for item in batch]
    rows["lengths"] = [len(item.ids) for item in masked]
    places, firsts = np.arange(length), np.array([[item.first] for item in batch])
    rows["token_type_ids"] = (places >= firsts) & (places < rows["lengths"][:, None])
    extra = [name for name in rows.dtype.names or () if name.startswith(EXTRA)]
    for number, name in enumerate(extra):
        rows[name] = [filled(item.extra[number], length) for item in batch]
    return rows


def require_two(documents: Documents, reader: Reader) -> None:
    """Raise InputError when no instances can be made of the documents that were read."""
    paths = reader.source.paths
    name = ", ".join("stdin" if path == "-" else path for path in paths)
    lines = any(reader.format_of(path) == "txt" for path in paths)
    if len(documents) > 1:
        return
    if not len(documents):
        form = "one sentence per line" if lines else "one document per record"
        raise InputError(f"{name}: no text found", f"give files with {form}")
    raise InputError(
        f"{name}: only one document, so no sentence can come from another",
        "separate documents by a blank line, or give JSONL with one document per line"
        if lines
        else "give several documents, one per record",
    )


def resized(parts: Iterator[Array], size: int) -> Iterator[Array]:
    """Yield the same rows in arrays of ``size`` rows; the last one has the rest."""
    import numpy as np

    waiting: list[Array] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= size:
            joined = np.concatenate(waiting)
            del part  # or all of it would be in memory twice while shards are written
            whole = len(joined) - len(joined) % size
            waiting = [joined[whole:].copy()]
            yield from (joined[start : start + size] for start in range(0, whole, size))
            del joined
    if any(map(len, waiting)):
        yield np.concatenate(waiting)


class Shuffle:
    """Rows of one type, more than fit into memory: added in any order, yielded in random order.

    Each row goes to a random one of many files, and each file is then shuffled in memory: every
    order of all rows is equally likely, and memory is that of one file.
    """

    def __init__(self, folder: Path, kind: np.dtype[Any], rows: int, rng: Random) -> None:
        """Prepare files in ``folder`` for about this number of ``rows``."""
        count = min(MOST, 1 + rows * kind.itemsize // BUCKET)
        self.files = [folder / f"bucket-{number}" for number in range(count)]
        self.kind, self.rng = kind, rng

    def add(self, rows: Array) -> None:
        """Add rows, best many at a time: each file that gets some is opened."""
        import numpy as np

        count = len(self.files)
        chosen = np.array([int(self.rng.random() * count) for _ in range(len(rows))])
        for number in np.unique(chosen).tolist():
            with self.files[number].open("ab") as file:
                file.write(rows[chosen == number].tobytes())

    def __iter__(self) -> Iterator[Array]:
        """Yield all rows in random order, in arrays of no fixed length; the files are removed."""
        import numpy as np

        for path in self.files:
            if path.exists():
                rows: Array = np.fromfile(path, self.kind)
                path.unlink()
                order = np.fromiter((self.rng.random() for _ in range(len(rows))), float, len(rows))
                rows = rows[np.argsort(order, kind="stable")]
                yield rows


@dataclass
class Statistics:
    """Counts over instances; ``summary`` is the result."""

    mask_id: int
    max_length: int
    lengths: Counter[int] = field(default_factory=Counter)
    random_next: int = 0
    predictions: int = 0
    masked: int = 0  # predictions replaced by [MASK]
    unchanged: int = 0  # predictions left unchanged

    def add(self, batch: Sequence[Instance]) -> None:
        """Count instances."""
        for (ids, positions, labels), _, is_random, _ in batch:
            self.lengths[len(ids)] += 1
            self.random_next += is_random
            self.predictions += len(positions)
            for position, label in zip(positions, labels, strict=True):
                if ids[position] == self.mask_id:
                    self.masked += 1
                elif ids[position] == label:
                    self.unchanged += 1

    def summary(self) -> dict[str, Any]:
        """Return it as JSON values; lengths and tokens include special tokens, but no padding."""
        instances = self.lengths.total()
        tokens = sum(length * count for length, count in self.lengths.items())
        replaced = self.predictions - self.masked - self.unchanged
        places = instances * self.max_length

        def share(part: int, whole: int) -> float:
            return round(part / whole, 6) if whole else 0.0

        return {
            "instances": instances,
            "tokens": tokens,
            "random_next_share": share(self.random_next, instances),
            "predictions": self.predictions,
            "predicted_share": share(self.predictions, tokens),
            "mask_share": share(self.masked, self.predictions),
            "random_token_share": share(replaced, self.predictions),
            "kept_share": share(self.unchanged, self.predictions),
            "length": {
                "min": min(self.lengths, default=0),
                **{f"p{part}": quantile(self.lengths, part / 100) for part in (1, 10, 50, 90)},
                "max": max(self.lengths, default=0),
            },
            "padding_share": share(places - tokens, places),
        }

    def lines(self) -> Iterator[str]:
        """Yield the summary as messages."""
        summary = self.summary()
        yield (
            f"{counted(summary['instances'], 'instance')}, {summary['tokens']:,} tokens; "
            f"second sentence random in {summary['random_next_share']:.1%} of the pairs"
        )
        yield (
            f"{summary['predicted_share']:.1%} of the tokens masked: "
            f"{summary['mask_share']:.1%} [MASK], {summary['random_token_share']:.1%} random "
            f"token, {summary['kept_share']:.1%} unchanged"
        )
        lengths = ", ".join(f"{name} {length}" for name, length in summary["length"].items())
        yield f"lengths: {lengths}; {summary['padding_share']:.1%} padding"

    def warnings(self) -> Iterator[str]:
        """Yield warnings about a corpus that is probably not as intended."""
        share = self.random_next / max(self.lengths.total(), 1)
        if share > MOSTLY:
            yield (
                f"second sentence random in {share:.0%} of the pairs, as many sentences fill "
                "a sequence alone; give one sentence per line"
            )
