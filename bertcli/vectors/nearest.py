"""The rows of a corpus that are nearest to some queries, by cosine, in one pass.

    near = Nearest(queries, 10)      # [q, D]
    for vectors in floats("corpus.npy"):
        near.add(vectors)            # [n, D]
    near.matches()[0][0].row

Letters: `q` queries, `n` vectors of a block, `k` rows kept for each query, `D` dimensions. Nothing
here knows a model: vectors come from a file, or from an embedder while it computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcli.errors import InputError
from bertcli.files.typed_json import JsonObject
from bertcli.records.records import Record
from bertcli.vectors.reading import manifest_of

if TYPE_CHECKING:
    from bertcli.vectors.reading import Array

Texts = dict[int, Record]  # by the number of their row

DIGITS = 9  # scores are equal when these are: then the earlier row comes first


class Match(NamedTuple):
    """A row of the corpus, numbered from 0, and its cosine to the query."""

    row: int
    score: float


class Nearest:
    """The best ``k`` rows for each query among all that it has seen."""

    def __init__(self, queries: Array, k: int) -> None:
        self.queries, self.k = _unit(queries), k
        self.rows = 0
        self._best: list[list[Match]] = [[] for _ in queries]

    def add(self, vectors: Array) -> None:
        """Take in the next rows of the corpus, [n, D].

        Raises InputError when they have other dimensions than the queries, or are not finite.
        """
        import numpy as np

        _check(vectors, self.queries, self.rows)
        scores = (self.queries @ _unit(vectors).T).round(DIGITS)  # [q, n]
        for best, mine in zip(self._best, scores, strict=True):
            least = best[-1].score if len(best) == self.k else -np.inf
            fresh = np.flatnonzero(mine > least)  # a tie goes to the row that was first
            fresh = fresh[np.lexsort((fresh, -mine[fresh]))[: self.k]]
            best += [Match(self.rows + int(at), float(mine[at])) for at in fresh]
            best.sort(key=lambda match: (-match.score, match.row))
            del best[self.k :]
        self.rows += len(vectors)

    def matches(self) -> list[list[Match]]:
        """Return for each query its rows, the nearest first."""
        return [list(best) for best in self._best]


def nearest(queries: Array, blocks: Iterable[Array], k: int) -> list[list[Match]]:
    """Return the ``k`` nearest rows of some blocks [n, D] for each query [q, D]."""
    found = Nearest(queries, k)
    for vectors in blocks:
        found.add(vectors)
    return found.matches()


def check_maker(
    path: str, digests: Mapping[str, Mapping[str, str]], config: Mapping[str, Any] | None = None
) -> JsonObject:
    """Return the options that a file of vectors was made with, as its manifest names them.

    ``digests`` are the sha256 of this model's files, by kind ("weights", "tokenizer") and name,
    ``config`` what else of the model its vectors depend on; an older manifest does not name it.
    Raises InputError when there is no manifest, or it names other files.
    """
    made = (manifest_of(path) or {}).get("fingerprint")
    if not isinstance(made, dict):
        raise InputError(
            f"{path}: no manifest next to it says which model made it",
            "make it with bertcli embed, or leave out --vectors",
        )
    for kind, mine in digests.items():
        theirs = made.get(kind)
        theirs = theirs if isinstance(theirs, dict) else {}
        if set(map(str, theirs.values())) != set(mine.values()):
            name = made.get("model", "unknown")
            raise InputError(
                f"{path}: was made by another model, {name}: sha256 of its {kind} is "
                f"{_shown(theirs)}, and here it is {_shown(mine)}",
                f"give --model {name}, or leave out --vectors",
            )
    _check_config(path, made.get("config"), config or {})
    options = made.get("options")
    options = options if isinstance(options, dict) else {}
    if options.get("pooling") == "none":
        kind = "words" if options.get("word_vectors") else "tokens"
        raise InputError(
            f"{path}: holds vectors of {kind}, but a search needs one per text",
            f"make it with bertcli embed without --{kind[:-1]}-vectors",
        )
    return JsonObject(options, f"{path}: manifest", InputError, path="fingerprint.options.")


def _check_config(path: str, theirs: object, mine: Mapping[str, Any]) -> None:
    if not isinstance(theirs, dict):
        return
    for key, value in mine.items():
        if theirs.get(key) != value:
            raise InputError(
                f"{path}: was made by a model whose {key} was {theirs.get(key)!r}, and here it is "
                f"{value!r}",
                "give --model the one that made it, or leave out --vectors",
            )


def check_texts(path: str, digest: str) -> None:
    """Raise InputError when the manifest says that a file was made from texts with another sha256.

    ``digest`` is that of the texts of the corpus; an older manifest does not name it.
    """
    made = (manifest_of(path) or {}).get("texts_sha256")
    if made is not None and made != digest:
        raise InputError(
            f"{path}: was made from other texts: their sha256 is {str(made)[:12]}, and that of the "
            f"corpus is {digest[:12]}",
            "leave out --vectors, or make it again",
        )


def _shown(digests: Mapping[str, str]) -> str:
    return ", ".join(str(digest)[:12] for digest in digests.values()) or "none"


def texts_at(path: str, records: Iterable[Record], rows: Iterable[int], count: int) -> Texts:
    """Return the records with these numbers, in one pass over the corpus.

    Raises InputError unless it has ``count`` records, as many as the file of vectors has rows.
    """
    wanted, total = set(rows), 0
    found: Texts = {}
    for total, record in enumerate(records, 1):
        if total - 1 in wanted:
            found[total - 1] = record
    if total != count:
        raise InputError(
            f"{path}: has {count} rows, and the corpus has {total} texts",
            "it was made from other texts; leave out --vectors, or make it again",
        )
    return found


def _check(vectors: Array, queries: Array, before: int) -> None:
    import numpy as np

    if vectors.ndim != 2 or vectors.shape[1] != queries.shape[1]:
        sizes = " x ".join(map(str, vectors.shape[1:]))
        raise InputError(
            f"the vectors have {sizes} dimensions, and the query has {queries.shape[1]}",
            "both must come from one model, with the same --dim, --layers and --pooling",
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(f"row {before + int(finite.argmin())} contains NaN or infinity")


def _unit(vectors: Array) -> Array:
    """Return vectors of length 1 in float64, so that equal rows get equal scores in any block."""
    import numpy as np

    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: Array = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return unit
