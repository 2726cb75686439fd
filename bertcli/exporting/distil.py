"""A static student of an encoder: a table of token vectors, which needs no network to run.

    run = Distillation(find_model("all-MiniLM-L6-v2", files=MODEL_FILES), Path("student"))
    for step in run:      # how far it is
        ...
    run.manifest

Each token goes through the encoder on its own, as [CLS] token [SEP]. The means of its states are
turned to their principal components, and weighted by how rare the token is (SIF), by Zipf's law of
its rank in the vocabulary. With a corpus, tokens that are a large share of it are weighted down
further. Its most frequent words that are several tokens can become tokens of the student, which
WordPiece then takes for them, as the longest. A text is the mean of its tokens. Special tokens that
no text becomes and unused ones are left out. The row of the unknown token is zero: model2vec drops
such tokens, and sentence-transformers does not, which is the same for vectors of length 1.

Frequencies of a corpus do not take the place of Zipf's law: that is flat (of 30,000 tokens, the
thousandth has 0.0001), so with the same constant of SIF the words that a corpus is about would
count next to nothing. On texts that were held out, students of all-MiniLM-L6-v2 agree with it so
(correlation of similarities, share of the ten nearest neighbours; 3,000 texts counted), and have
these mean Spearman correlations on STS 2012 to 2016 and SICK-R:

              Zipf alone     its mean with the corpus   with COMMON, as here
headlines   0.704  45.2 %         0.480  23.8 %            0.708  45.0 %
docstrings  0.406  27.9 %         0.342  19.8 %            0.424  28.7 %
AG News     0.561  34.0 %         0.605  32.3 %            0.593  35.5 %
WikiText    0.586  26.3 %         0.401  26.4 %            0.475  30.3 %
STS              65.8               63.1 to 66.7              66.3 to 66.8

Letters: `V` tokens of the student, `H` dimensions of a state, `D` dimensions of a vector. Source:
model2vec 0.10, distill; Arora, Liang and Ma 2017, section 3 (SIF).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, compress, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.sentence_modules import put_modules
from bertcli.engines.engine import Tokens
from bertcli.engines.static_engine import unknown_id
from bertcli.errors import InputError, ModelError, UsageError, option
from bertcli.formats.safetensors import write_arrays
from bertcli.io.paths import sha256
from bertcli.io.progress import Advance, Ran, Show, show_nothing
from bertcli.io.publish import MANIFEST, whole_folder
from bertcli.io.typed_json import parse, write_json
from bertcli.model_folder.files import MODULES
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.reader import Reader
from bertcli.retrieval.compare import similarity_agreement
from bertcli.tasks.head import command_of, origin
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.run import TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer

TABLE = "model.safetensors"
UNUSED = re.compile(r"\[unused\d+\]")
SIF = 1e-4  # by Zipf's law, the frequency of a token that counts half
COMMON = 0.02  # the share of a corpus that makes a token count half
DIM = 256  # where so many are possible
TOKENS_PER_RUN = 4096
HELD_OUT_INTERVAL = 10  # each tenth text of a corpus is held out
MAX_HELD_OUT = 1000  # texts
MAX_WORD_TOKENS = 16
MAX_WORDS = 1_000_000  # that are counted: beyond, those that were rare so far are forgotten


def kept_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tokens that a student has too, in their order."""
    core = tokenizer.core
    roles = tokenizer.roles
    special = {token.content for token in core.get_added_tokens_decoder().values()}
    special -= {roles["unk_token"], roles["pad_token"]}
    ids = core.get_vocab()
    return sorted(ids[token] for token in ids.keys() - special if not UNUSED.match(token))


def split_words(ids: np.ndarray, inner: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the words of several tokens; ``inner`` are the ids of tokens that go on with one."""
    starts = np.flatnonzero(~np.isin(ids, inner))
    for start, stop in pairwise([*starts.tolist(), len(ids)]):
        if 1 < stop - start <= MAX_WORD_TOKENS:
            yield tuple(ids[start:stop].tolist())


def continuing_prefix(tokenizer: Tokenizer) -> str:
    """Return what tokens that continue a word begin with; empty unless they are WordPiece's."""
    core: Any = tokenizer.core
    return getattr(core.model, "continuing_subword_prefix", None) or ""


def tokenizer_json(tokenizer: Tokenizer, tokens: Sequence[str]) -> Any:
    """Return the tokenizer of a student that has these tokens."""
    raw = parse(tokenizer.core.to_str())
    rows = {token: row for row, token in enumerate(tokens)}
    model = raw["model"]
    if isinstance(model["vocab"], list):  # Unigram, whose tokens have scores
        scores = dict(model["vocab"])
        model["vocab"] = [[token, scores.get(token, 0.0)] for token in tokens]
        model["unk_id"] = rows.get(tokenizer.roles["unk_token"])
    else:
        model["vocab"] = rows
    raw["added_tokens"] = [
        token | {"id": rows[token["content"]]}
        for token in raw["added_tokens"]
        if token["content"] in rows
    ]
    return raw | {"post_processor": None, "truncation": None, "padding": None}


def principal_components(states: np.ndarray, dim: int) -> tuple[np.ndarray, float]:
    """Return the first components [V, D] of states [V, H], and their share of the variance.

    In each, the value that is farthest from zero is positive.
    """
    centred = states - states.mean(0)  # float32, as in model2vec
    variances, axes = np.linalg.eigh(centred.T @ centred)  # the smallest first
    components = centred @ axes[:, : -dim - 1 : -1]
    farthest = np.abs(components).argmax(0)
    components *= np.sign(components[farthest, np.arange(dim)])
    return components, float(variances[-dim:].sum() / (variances.sum() or 1))


def token_weights(size: int, counts: np.ndarray | None) -> np.ndarray:
    """Return the weight of each token of a vocabulary, [V], perhaps with its ``counts`` [V]."""
    frequencies = 1 / np.arange(2, size + 2)  # Zipf's law
    frequencies /= frequencies.sum()
    weights = SIF / (SIF + frequencies)
    if counts is not None:
        weights *= COMMON / (COMMON + counts / counts.sum())
    return weights


@dataclass
class CorpusCounts:
    """How often tokens and words are in a corpus, and the texts that are held out of it."""

    tokens: np.ndarray  # [vocabulary of the teacher]
    words: Counter[tuple[int, ...]] = field(default_factory=Counter)  # of several tokens
    held_out: list[Any] = field(default_factory=list)

    def count(
        self, reader: Reader, tokenizer: Tokenizer, show: Show, *, inner: Sequence[int] | None
    ) -> None:
        """Count the tokens of a corpus; words only with the ids of tokens ``inner`` to one."""
        layout = Layout(("input_ids",), special_tokens=False)
        for block in TokenizeRun(reader, tokenizer, layout):
            numbers = np.asarray(block.samples)
            is_held_out = numbers % HELD_OUT_INTERVAL == HELD_OUT_INTERVAL - 1
            is_held_out &= numbers < HELD_OUT_INTERVAL * MAX_HELD_OUT
            self.held_out += compress(block.records.texts, is_held_out)
            is_counted = np.repeat(~is_held_out, block.lengths)
            ids = np.asarray(block.ids, np.int64)[is_counted]
            self.tokens += np.bincount(ids, minlength=len(self.tokens))
            if inner is not None:
                self.words.update(split_words(ids, inner))
            if len(self.words) > MAX_WORDS:
                self.words = Counter(dict(self.words.most_common(MAX_WORDS // 2)))
            show(Ran(len(block)))

    def take_words(self, limit: int) -> dict[tuple[int, ...], int]:
        """Return the most frequent words and their counts; their tokens count so much less."""
        words = dict(self.words.most_common(limit))
        for word, count in words.items():
            self.tokens[[*word]] -= count  # a token that a word has twice is rare
        return words


@dataclass
class Distillation:
    """Writes the folder of a student, and its ``manifest``."""

    source: ModelFolder
    output: Path
    dim: int | None = None  # None: DIM, or as many as are possible
    words: int | None = None  # of the corpus that become tokens; None: none
    how: EmbedOptions = field(default_factory=EmbedOptions)  # of the teacher: device and so on
    reader: Reader | None = None  # of a corpus
    overwrite: bool = False
    manifest: dict[str, Any] = field(default_factory=dict)

    def execute(self, show: Show = show_nothing) -> dict[str, Any]:
        """Write the folder, and return its manifest."""
        source = self.source
        reader = self.reader
        self._refuse_models_without_vectors()
        corpus_paths = reader.source.paths if reader else ()
        inputs: list[str | Path] = [*source.model_files, *corpus_paths]
        with whole_folder(self.output, "distil", overwrite=self.overwrite, inputs=inputs) as folder:
            teacher = Embedder.open(source, replace(self.how, pooling="mean", normalize=False))
            tokenizer = teacher.runtime.tokenizer
            token_ids = kept_ids(tokenizer)
            dim = self._dim(min(teacher.nothing.shape[-1], len(token_ids) - 1))
            inner = self._inner_tokens(tokenizer)
            corpus = CorpusCounts(np.zeros(teacher.runtime.config.vocab_size, np.int64))
            if reader:
                corpus.count(reader, tokenizer, show, inner=inner)
            words = corpus.take_words(self.words or 0)
            pieces = [*((token_id,) for token_id in token_ids), *words]
            counts = np.array([*corpus.tokens[token_ids], *words.values()])
            if reader and not counts.any():
                raise InputError("no text in the corpus", "give files of text")
            states = self._states(teacher, pieces, show)
            variance = self._write_student(
                folder, tokenizer, states, pieces, counts if reader else None, dim
            )
            self.manifest = origin(source, teacher.runtime.spec) | {
                "corpus": corpus_paths,
                "tokens": len(pieces),
                "words": len(words),
                "dim": dim,
                "variance": variance,
                "sha256": sha256(folder / TABLE),
            }
            if corpus.held_out:
                with TemporaryDirectory() as plain:
                    kept = states[: len(token_ids)]
                    pieces = pieces[: len(token_ids)]
                    self._write_student(Path(plain), tokenizer, kept, pieces, None, dim)
                    self._measure(corpus.held_out, folder, Path(plain), show)
            write_json(folder / MANIFEST, self.manifest)
        return self.manifest

    def _refuse_models_without_vectors(self) -> None:
        """Raise ModelError for a model that has no encoder, or makes no vectors of texts."""
        source = self.source
        source.require_encoder()  # a table of token vectors has no encoder
        if not (source.path / MODULES).exists() and command_of(source) == "classify":
            raise ModelError(
                f"{source.path}: a classifier or cross-encoder, which makes no vectors of texts",
                "give a sentence model, or a bare encoder",
            )

    def _dim(self, limit: int) -> int:
        """Return the number of dimensions. Raises UsageError for more than the limit."""
        dim = self.dim or min(DIM, limit)
        if not 0 < dim <= limit:
            raise UsageError(
                f"{option('dim', dim)} is not possible", f"give a number from 1 to {limit}"
            )
        return dim

    def _inner_tokens(self, tokenizer: Tokenizer) -> list[int] | None:
        """Return the ids of tokens that continue a word, for words to be counted; else None."""
        if not self.words:
            return None
        core: Any = tokenizer.core
        prefix = continuing_prefix(tokenizer)
        if not prefix:
            raise ModelError(
                f"{self.source.path}: {option('words')} requires a vocabulary of WordPiece"
            )
        return [index for token, index in core.get_vocab().items() if token.startswith(prefix)]

    def _states(
        self, teacher: Embedder, pieces: Sequence[tuple[int, ...]], show: Show
    ) -> np.ndarray:
        """Return the mean of the states of each piece, [V, H]."""
        tokenizer = teacher.runtime.tokenizer
        parts = []
        for start in range(0, len(pieces), TOKENS_PER_RUN):
            some = pieces[start : start + TOKENS_PER_RUN]
            texts = [*map(tokenizer.build_inputs_with_special_tokens, some)]
            columns = np.array([(index, 0) for index in chain(*texts)], np.uint32)
            tokens = Tokens(columns, np.cumsum([0, *map(len, texts)]))
            parts.append(teacher.vectors_of(tokens))
            done = start + len(texts)
            show(Advance(done, "tokens", done / len(pieces)))
        states = np.concatenate(parts)
        if not np.isfinite(states).all():
            raise ModelError(
                f"{self.source.path}: states of tokens contain NaN or infinity",
                "bertcli inspect --verify checks the weights",
            )
        return states

    def _write_student(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        states: np.ndarray,
        pieces: Sequence[tuple[int, ...]],
        counts: np.ndarray | None,
        dim: int,
    ) -> float:
        """Write a student of the pieces with these states; return its share of the variance."""
        core: Any = tokenizer.core
        table, variance = principal_components(states, dim)
        table *= token_weights(len(table), counts)[:, None]
        unknown = (unknown_id(tokenizer),)
        if unknown in pieces:
            table[pieces.index(unknown)] = 0
        with (folder / TABLE).open("wb") as file:
            write_arrays(file, {"embeddings": table.astype(np.float32)})
        prefix = continuing_prefix(tokenizer)
        names = []
        for piece in pieces:
            name = "".join(map(core.id_to_token, piece))
            names.append(name.replace(prefix, "") if len(piece) > 1 else name)
        write_json(folder / "tokenizer.json", tokenizer_json(tokenizer, names))
        config = {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "tokenizer_name": self.source.name,
            "apply_pca": dim,
            "sif_coefficient": SIF,
            "hidden_dim": dim,
            "normalize": True,
            "max_length": None,  # texts are truncated by no library
        }
        write_json(folder / "config.json", config)
        put_modules(folder, {"": "StaticEmbedding", "1_Normalize": "Normalize"})
        return variance

    def _measure(self, texts: Sequence[Any], folder: Path, plain: Path, show: Show) -> None:
        """Compare the student, and a ``plain`` one without the corpus, with the teacher."""
        teacher = RecordVectors(Embedder.open(self.source, self.how), texts)
        teacher.execute(show)
        is_compared = np.ones(len(texts), bool)
        for name, path in (("agreement", folder), ("agreement_without_corpus", plain)):
            model = ModelFolder(path, self.output.name)
            student = RecordVectors(Embedder.open(model, EmbedOptions()), texts)
            student.execute(show)
            agreement = similarity_agreement(teacher.vectors, student.vectors, is_compared)
            self.manifest[name] = asdict(agreement)
