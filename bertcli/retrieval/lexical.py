"""Lexical search: BM25, the file of its index beside a file of vectors, and rank fusion.

    index = Bm25(tokenizer)
    index.add(records)
    index.best(Record("order 4711"), 10)[0].row

Terms are the words of BERT's basic tokenization, in lower case and without accents; each
punctuation mark and each Chinese character is a separate term. Text in scripts without word
separators (Thai, Lao, Khmer, Burmese, kana) is split into tokens by the model's tokenizer.

Sources: Devlin et al., BERT, 2018 (BasicTokenizer); Robertson and Zaragoza, The Probabilistic
Relevance Framework: BM25 and Beyond, 2009, in the variant of Lucene and bm25s (Kamphuis et al.,
Which BM25 Do You Mean?, 2020); Cormack, Clarke and Buettcher, Reciprocal Rank Fusion, 2009.

Letters: `n` texts, `V` different terms, `P` postings (pairs of a term and a text that contains it).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, count, repeat
from math import log
from pathlib import Path
from stat import S_IMODE
from typing import Any, NamedTuple

import numpy as np

from bertcli.errors import OutputError
from bertcli.formats.arrays import ARCHIVE_ERRORS, ZIP_STORED, BadZipFile, ZipFile, array_of_stream
from bertcli.formats.vector_files import Array
from bertcli.io.paths import beside
from bertcli.io.publish import remove_abandoned, whole_file
from bertcli.io.typed_json import is_regular
from bertcli.records.batch import RecordBatch
from bertcli.records.record import Record, Text
from bertcli.retrieval.nearest import DIGITS, BestRows, Match
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.versions import __version__

# --- terms ---

ASCII_WORD = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
ASCII_CONTROL = re.compile(r"[\0-\x1f\x7f]")
NO_BLANKS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")  # white space for Python; BERT removes it
UNSEPARATED = re.compile(  # runs of scripts without word separators
    "([\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]+)"
)
CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class _Replacements(dict[int, str | None]):
    """A translation table of BERT's basic tokenization, filled on demand; None: remove.

    Keys are code points of a text in NFD.
    """

    def __missing__(self, code: int) -> str | None:
        replacement = self._replacement(chr(code))
        self[code] = replacement
        return replacement

    @staticmethod
    def _replacement(character: str) -> str | None:
        """Return the text in place of a character; None to remove it."""
        code = ord(character)
        category = unicodedata.category(character)
        if category[0] == "Z" or character in "\t\n\r":
            return " "
        if category[0] == "C" or category == "Mn" or character == "\ufffd":
            return None
        is_punctuation = category[0] == "P" or (character.isascii() and not character.isalnum())
        if is_punctuation or any(first <= code <= last for first, last in CHINESE):
            return f" {character} "
        return character.lower()


REPLACEMENTS = _Replacements()


class Terms(NamedTuple):
    """The terms of a text: its words, and words with inner punctuation (3.14) as one compound."""

    words: list[str]
    compounds: list[str]


def chunks_of(text: Text | None) -> list[str]:
    """Return the chunks of a text: strings without white space."""
    if text is None:
        return []
    return NO_BLANKS.sub("", text if isinstance(text, str) else " ".join(text)).split()


def terms_of_chunk(chunk: str, tokenizer: Tokenizer) -> Terms:
    """Return the terms of a string without white space."""
    if chunk.isalnum() and chunk.isascii():
        return Terms([chunk.lower()], [])
    words: list[str] = []
    for number, run in enumerate(UNSEPARATED.split(chunk)):
        words += _tokens_or_letters(run, tokenizer) if number % 2 else words_of(run)
    alphanumeric = [number for number, word in enumerate(words) if word.isalnum()]
    compound = words[alphanumeric[0] : alphanumeric[-1] + 1] if alphanumeric else []
    has_punctuation = len(compound) > 2 and not all(map(str.isalnum, compound))
    return Terms(words, ["".join(compound)] if has_punctuation else [])


def words_of(text: str) -> list[str]:
    """Return the words of a text, by BERT's basic tokenization for uncased models."""
    if text.isascii() and not ASCII_CONTROL.search(text):
        return ASCII_WORD.findall(text.lower())
    return unicodedata.normalize("NFD", text).translate(REPLACEMENTS).split()


def _tokens_or_letters(run: str, tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of a run of letters, or its letters if a token is unknown."""
    tokens = tokenizer.core.encode(run, add_special_tokens=False).tokens
    if not tokens or tokenizer.roles.get("unk_token") in tokens:
        return list(run)
    return tokens


INNER_PUNCTUATION = re.compile(r"[^\W_]+(?:[^\w\s]|_)+[^\W_]")


def is_literal(query: Record) -> bool:
    """Return True if a query has only names, numbers and identifiers.

    That is, each of its words starts with a capital letter, or contains a digit or inner
    punctuation.
    """
    return query.pair is None and all(
        chunk[:1].isupper() or any(map(str.isdigit, chunk)) or INNER_PUNCTUATION.search(chunk)
        for chunk in chunks_of(query.text)
    )


# --- the index ---

# Defaults of bm25s.
K1 = 1.5  # saturation of term counts
B = 0.75  # length normalization


class Postings(NamedTuple):
    """The inverted index of texts: for each term, the texts that contain it and its counts."""

    terms: Sequence[str]  # [V]
    offsets: Array  # int64 [V + 1]: start of the postings of each term
    rows: Array  # int32 [P]: rows of texts, ascending for each term
    counts: Array  # int32 [P]: occurrences of the term in the text
    lengths: Array  # int32 [n]: number of words of each text


def merge_postings(mapped_postings: Sequence[tuple[Postings, Array]], text_count: int) -> Postings:
    """Return the postings of a new index with rows of several indexes.

    The new row of each row comes with the postings, int64 [n]; -1 drops a row.
    """
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    lengths = np.zeros(text_count, np.int32)
    keys = [np.zeros(0, np.int64)]
    counts = [np.zeros(0, np.int32)]
    for postings, new_rows in mapped_postings:
        is_kept = new_rows >= 0
        lengths[new_rows[is_kept]] = postings.lengths[is_kept]
        rows = new_rows[postings.rows]
        term_numbers = np.array([numbers[term] for term in postings.terms], np.int64)
        terms = np.repeat(term_numbers, np.diff(postings.offsets))
        keys.append((terms * max(1, text_count) + rows)[rows >= 0])
        counts.append(postings.counts[rows >= 0])
    all_keys = np.concatenate(keys)
    order = np.argsort(all_keys)
    terms, rows = np.divmod(all_keys[order], max(1, text_count))
    sizes = np.bincount(terms, minlength=len(numbers))
    kept_terms = [term for term, size in zip(numbers, sizes.tolist(), strict=True) if size]
    offsets = np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).astype(np.int64)
    all_counts = np.concatenate(counts)[order].astype(np.int32)
    return Postings(kept_terms, offsets, rows.astype(np.int32), all_counts, lengths)


class _ChunkNumbers(dict[str, tuple[int, ...]]):
    """A cache of the term numbers of chunks, as most chunks of a corpus are repeated.

    ``compounds`` are the numbers of the terms that are compounds.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.terms: defaultdict[str, int] = defaultdict(count().__next__)
        self.compounds: set[int] = set()

    def __missing__(self, chunk: str) -> tuple[int, ...]:
        words, compounds = terms_of_chunk(chunk, self.tokenizer)
        compound_numbers = [self.terms[term] for term in compounds]
        self.compounds.update(compound_numbers)
        if len(self) >= MAX_CACHED_CHUNKS:
            self.clear()
        numbers = (*(self.terms[word] for word in words), *compound_numbers)
        self[chunk] = numbers
        return numbers


MAX_CACHED_CHUNKS = 1 << 18


class Bm25:
    """A BM25 index in memory: add all texts, or give their postings, then search."""

    def __init__(self, tokenizer: Tokenizer, postings: Postings | None = None) -> None:
        self.tokenizer = tokenizer
        if postings is not None:
            self.postings = postings
            return
        self._chunks = _ChunkNumbers(tokenizer)
        self._terms = [np.zeros(0, np.int32)]  # term numbers of all texts, concatenated
        self._sizes: list[int] = []  # number of terms of each text

    def add(self, records: Sequence[Record]) -> None:
        """Add the next texts."""
        block = RecordBatch.of(records)
        numbers_of = self._chunks.__getitem__
        terms: list[int] = []
        for text, pair in zip(block.texts, block.pairs or repeat(None), strict=False):
            start = len(terms)
            terms += chain.from_iterable(map(numbers_of, chunks_of(text)))
            if pair is not None:
                terms += chain.from_iterable(map(numbers_of, chunks_of(pair)))
            self._sizes.append(len(terms) - start)
        self._terms.append(np.array(terms, np.int32))

    @cached_property
    def postings(self) -> Postings:
        """The postings of all texts. No text can be added afterwards."""
        text_count = max(1, len(self._sizes))
        vocabulary = self._chunks.terms
        occurrences = np.concatenate(self._terms, dtype=np.int64)
        rows = np.repeat(np.arange(len(self._sizes), dtype=np.int32), self._sizes)
        is_word = np.ones(len(vocabulary), bool)
        is_word[[*self._chunks.compounds]] = False
        lengths = np.bincount(rows[is_word[occurrences]], minlength=len(self._sizes))
        occurrences *= text_count  # keys: term number * text count + row
        occurrences += rows
        del self._terms, self._chunks, rows
        occurrences.sort()
        starts = np.flatnonzero(np.diff(occurrences, prepend=-1))
        counts = np.diff(starts, append=len(occurrences))
        terms, rows = np.divmod(occurrences[starts], text_count)
        offsets = np.zeros(len(vocabulary) + 1, np.int64)
        np.cumsum(np.bincount(terms, minlength=len(vocabulary)), out=offsets[1:])
        return Postings(
            list(vocabulary),
            offsets,
            rows.astype(np.int32),
            counts.astype(np.int32),
            lengths.astype(np.int32),
        )

    @cached_property
    def _term_numbers(self) -> dict[str, int]:
        """The number of each term, by term."""
        return {term: number for number, term in enumerate(self.postings.terms)}

    @cached_property
    def _saturation(self) -> Array:
        """The term count that gives half of the maximum weight in each text, [n]."""
        lengths = self.postings.lengths
        mean = lengths.mean() if lengths.any() else 1.0
        return K1 * (1 - B + B * lengths / mean)

    def _postings_of(self, term: str) -> slice | None:
        """Return the slice of the postings of a term; None if no text contains it."""
        number = self._term_numbers.get(term)
        return None if number is None else slice(*self.postings.offsets[number : number + 2])

    def texts_with_all(self, query: Record) -> Array:
        """Return the rows of the texts that contain all terms of a query, in ascending order."""
        counts = np.zeros(len(self.postings.lengths), np.int32)
        terms = self._terms_of(query)
        for term in terms:
            if postings := self._postings_of(term):
                counts[self.postings.rows[postings]] += 1
        return np.flatnonzero(counts == len(terms)) if terms else counts[:0]

    def _terms_of(self, query: Record) -> Counter[str]:
        """Return how often each term occurs in a query."""
        chunks = [*chunks_of(query.text), *chunks_of(query.pair)]
        terms = (terms_of_chunk(chunk, self.tokenizer) for chunk in chunks)
        return Counter(chain.from_iterable(chain.from_iterable(terms)))

    def scores(self, query: Record) -> Array:
        """Return the score of each text for a query, float64 [n]."""
        postings = self.postings
        text_count = len(postings.lengths)
        scores = np.zeros(text_count)
        for term, times in self._terms_of(query).items():
            postings_of_term = self._postings_of(term)
            if postings_of_term is None:
                continue
            rows = postings.rows[postings_of_term]
            counts = postings.counts[postings_of_term]
            rarity = log(1 + (text_count - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += times * rarity * counts / (counts + self._saturation[rows])
        return scores

    def best(self, query: Record, top_k: int, *, of_literals: bool = False) -> list[Match]:
        """Return the ``top_k`` texts with any term of the query, best first; ties by row.

        With ``of_literals`` and a query that ``is_literal``, return only texts that contain all of
        its terms, if there is one.
        """
        scores = self.scores(query).round(DIGITS)
        if of_literals and is_literal(query):
            complete = self.texts_with_all(query)
            if len(complete):
                lacks_terms = np.ones(len(scores), bool)
                lacks_terms[complete] = False
                scores[lacks_terms] = 0
        rows = np.flatnonzero(scores)
        if len(rows) > top_k:
            lowest_score = np.partition(scores[rows], -top_k)[-top_k]
            rows = rows[scores[rows] >= lowest_score]
        best = BestRows([query], top_k)
        best.keep(0, rows, scores[rows])
        return best.matches()[0]


# --- the file of an index ---

INDEX_SUFFIX = ".terms.npz"  # appended to the name of the file of vectors
TERMS_VERSION = 1  # version of the term rules and of the file format
KEY = "vectors"  # array with the versions and the digests of the vectors and texts
TERMS = "terms"  # array of all terms, UTF-8, separated by line feeds
NUMBERS = {"offsets": np.int64, "rows": np.int32, "counts": np.int32, "lengths": np.int32}
BROKEN = (OSError, TypeError, ValueError, LookupError, MemoryError, *ARCHIVE_ERRORS)


class Bm25File:
    """The file of a BM25 index, beside a file of vectors.

    ``vectors_digest`` is the sha256 of the vectors, ``texts_digest`` that of the texts; None if
    unknown. A file for other vectors or texts, of another version or with damaged arrays is
    ignored.
    """

    def __init__(self, vectors: Path, vectors_digest: str | None, texts_digest: str | None) -> None:
        self.path = beside(vectors, INDEX_SUFFIX)
        self.mode = S_IMODE(vectors.stat().st_mode)
        self.texts_digest = texts_digest
        self.key = f"{__version__} {TERMS_VERSION} {texts_digest} {vectors_digest}"

    def read(self) -> Postings | None:
        """Return the stored postings; None if there are none that are valid.

        Raises OutputError for a file of this name that bertcli did not write. Temporary files of
        killed processes are removed.
        """
        remove_abandoned(self.path)
        hint = "move it away: the index of the words of the corpus has this name"
        if not is_regular(self.path, OutputError, hint):
            return None
        try:
            with ZipFile(self.path) as archive:
                if f"{KEY}.npy" not in archive.namelist():
                    raise OutputError(f"{self.path}: not an index of bertcli", hint)
                return self._read(archive)
        except BROKEN:
            return None

    def _read(self, archive: ZipFile) -> Postings | None:
        """Return the postings in an archive; None if they are not valid. Raises one of BROKEN."""
        limit = self.path.stat().st_size

        def values(name: str, dtype: Any) -> Array:
            member = archive.getinfo(f"{name}.npy")
            if member.compress_type != ZIP_STORED or member.file_size > limit:
                raise BadZipFile(f"{name} is compressed")
            stored = array_of_stream(archive.open(member))
            if stored.dtype != dtype or len(stored.shape) != 1:
                raise ValueError(f"{name} is {stored.dtype_name} of shape {stored.shape}")
            return np.concatenate([np.zeros(0, dtype), *stored.blocks()])

        if bytes(values(KEY, np.uint8)) != self.key.encode():
            return None
        text = bytes(values(TERMS, np.uint8)).decode()
        arrays = {name: values(name, dtype) for name, dtype in NUMBERS.items()}
        postings = Postings(text.split("\n") if text else [], **arrays)
        return postings if is_consistent(postings) else None

    def write(self, postings: Postings) -> None:
        """Write postings with the permissions of the vectors. An OSError is ignored."""
        arrays = {name: getattr(postings, name) for name in NUMBERS}
        arrays[KEY] = _bytes_of(self.key)
        arrays[TERMS] = _bytes_of("\n".join(postings.terms))
        with suppress(OSError), whole_file(self.path, self.mode) as file:
            np.savez(file, **arrays)


def _bytes_of(text: str) -> Array:
    return np.frombuffer(text.encode(), np.uint8)


def is_consistent(postings: Postings) -> bool:
    """Return True if the arrays of postings are consistent with each other."""
    terms, offsets, rows, counts, lengths = postings
    text_count = len(lengths)
    if len(offsets) != len(terms) + 1 or offsets[0] != 0 or offsets[-1] != len(rows):
        return False
    if len(set(terms)) != len(terms) or (np.diff(offsets) < 1).any() or len(counts) != len(rows):
        return False
    if len(rows) and (rows.min() < 0 or rows.max() >= text_count or counts.min() < 1):
        return False
    ascending = np.diff(rows, prepend=-1) > 0
    ascending[offsets[:-1]] = True  # first posting of each term
    totals = np.bincount(rows, counts, text_count)  # with compounds
    return bool(ascending.all() and lengths.min(initial=0) >= 0 and (totals >= lengths).all())


# --- the fusion of ranks ---

DEPTH = 100  # minimum number of results of each search that are fused
RANK_CONSTANT = 60.0  # added to a rank; value of Cormack et al.


def fuse(
    dense: Sequence[Match],
    lexical: Sequence[Match],
    top_k: int,
    rank_constant: float = RANK_CONSTANT,
    lexical_weight: float = 1.0,
) -> list[Match]:
    """Return the ``top_k`` matches of two searches fused by reciprocal rank, with both ranks.

    The score of a text is 1 / (rank_constant + dense rank) + lexical_weight / (rank_constant +
    lexical rank); a search that does not find the text adds 0. Ties are sorted by row.
    """
    dense_ranks = {match.row: rank for rank, match in enumerate(dense, 1)}
    lexical_ranks = {match.row: rank for rank, match in enumerate(lexical, 1)}
    matches = []
    for row in dense_ranks | lexical_ranks:
        ranks = {"dense_rank": dense_ranks.get(row), "lexical_rank": lexical_ranks.get(row)}
        score = 0.0
        if (rank := ranks["dense_rank"]) is not None:
            score += 1 / (rank_constant + rank)
        if (rank := ranks["lexical_rank"]) is not None:
            score += lexical_weight / (rank_constant + rank)
        matches.append(Match(row, round(score, DIGITS), ranks))
    return sorted(matches, key=lambda match: (-match.score, match.row))[:top_k]
