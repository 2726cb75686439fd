"""Distil an encoder to a static student: a table of token vectors, without a network.

    run = Distillation(find_model("all-MiniLM-L6-v2", files=MODEL_FILES), Path("student"))
    run.execute()         # returns run.manifest

The encoder runs on each token alone, as [CLS] token [SEP]. The mean of its states is projected to
the principal components of all tokens and weighted by SIF, with frequencies from Zipf's law of the
rank of the token in the vocabulary. With a corpus, tokens that are a large share of it get smaller
weights. Frequent words of the corpus that are several tokens can become tokens of the student;
WordPiece prefers them as the longest match. The vector of a text is the mean of its tokens. Special
tokens and unused tokens are left out. The vector of the unknown token is zero: model2vec drops
unknown tokens, sentence-transformers does not, and the results are equal after normalization.

Corpus frequencies do not replace Zipf's law. Zipf's law is flat (of 30,000 tokens, the 1000th has
frequency 0.0001), so with the same SIF constant the topic words of a corpus would get weights near
0. The table compares students of all-MiniLM-L6-v2 with it on held-out texts (correlation of
similarities, overlap of the 10 nearest neighbours; counts from 3,000 texts). The last row has mean
Spearman correlations on STS 2012 to 2016 and SICK-R:

              Zipf alone     its mean with the corpus   with COMMON, as here
headlines   0.704  45.2 %         0.480  23.8 %            0.708  45.0 %
docstrings  0.406  27.9 %         0.342  19.8 %            0.424  28.7 %
AG News     0.561  34.0 %         0.605  32.3 %            0.593  35.5 %
WikiText    0.586  26.3 %         0.401  26.4 %            0.475  30.3 %
STS              65.8               63.1 to 66.7              66.3 to 66.8

Letters: `V` tokens of the student, `H` dimensions of a state, `D` of a student vector. Source:
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
from typing import Any, NamedTuple

import numpy as np

from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.embedding.sentence_modules import write_modules_file
from bertcli.engines.engine import PackedTokens
from bertcli.engines.static_engine import unknown_id
from bertcli.errors import InputError, ModelError, UsageError, option
from bertcli.formats.safetensors import write_arrays
from bertcli.io.paths import sha256
from bertcli.io.progress import Advance, BatchDone, Show, show_nothing
from bertcli.io.publish import MANIFEST, whole_folder
from bertcli.io.typed_json import parse, write_json
from bertcli.model_folder.files import MODULES
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.reader import Reader
from bertcli.retrieval.compare import similarity_agreement
from bertcli.tasks.head import command_of, source_entries
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.run import TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer

TABLE = "model.safetensors"
UNUSED_TOKEN = re.compile(r"\[unused\d+\]")
SIF = 1e-4  # Zipf frequency at which the weight of a token is 1/2
COMMON = 0.02  # share of the corpus at which the weight of a token is halved
DIM = 256  # default, if the model allows as many
TOKENS_PER_RUN = 4096
HELD_OUT_INTERVAL = 10  # every 10th text of the corpus is held out
MAX_HELD_OUT = 1000  # texts
MAX_WORD_TOKENS = 16
MAX_WORDS = 1_000_000  # different words that are counted; above it, the rarer half is dropped


def student_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the teacher's tokens that are also the student's, in ascending order."""
    core = tokenizer.core
    roles = tokenizer.roles
    special = {token.content for token in core.get_added_tokens_decoder().values()}
    special -= {roles["unk_token"], roles["pad_token"]}
    ids = core.get_vocab()
    return sorted(ids[token] for token in ids.keys() - special if not UNUSED_TOKEN.match(token))


def words_of_several_tokens(ids: np.ndarray, inner: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the words of 2 to MAX_WORD_TOKENS tokens in a sequence, as tuples of ids.

    ``inner`` are the ids of tokens that continue a word.
    """
    starts = np.flatnonzero(~np.isin(ids, inner))
    for start, stop in pairwise([*starts.tolist(), len(ids)]):
        if 1 < stop - start <= MAX_WORD_TOKENS:
            yield tuple(ids[start:stop].tolist())


def continuing_prefix(tokenizer: Tokenizer) -> str:
    """Return the prefix of tokens that continue a word (WordPiece's "##"); "" for other models."""
    core: Any = tokenizer.core
    return getattr(core.model, "continuing_subword_prefix", None) or ""


def tokenizer_json(tokenizer: Tokenizer, tokens: Sequence[str]) -> Any:
    """Return the content of tokenizer.json for a student with these tokens."""
    raw = parse(tokenizer.core.to_str())
    rows = {token: row for row, token in enumerate(tokens)}
    model = raw["model"]
    if isinstance(model["vocab"], list):  # Unigram: pairs of token and score
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


class PrincipalComponents(NamedTuple):
    """The first D principal components of states [V, H]."""

    values: np.ndarray  # [V, D]
    variance: float  # their share of all variance
    mean: np.ndarray  # [H], of the states
    axes: np.ndarray  # [H, D]: (states - mean) @ axes are the values


def principal_components(states: np.ndarray, dim: int) -> PrincipalComponents:
    """Return the first ``dim`` principal components of states [V, H].

    The sign of each component is chosen so that its value of largest magnitude is positive.
    """
    mean = states.mean(0)
    centred = states - mean  # float32, as in model2vec
    variances, axes = np.linalg.eigh(centred.T @ centred)  # in ascending order
    axes = axes[:, : -dim - 1 : -1]
    components = centred @ axes
    farthest = np.abs(components).argmax(0)
    signs = np.sign(components[farthest, np.arange(dim)])
    variance = float(variances[-dim:].sum() / (variances.sum() or 1))
    components *= signs
    return PrincipalComponents(components, variance, mean, axes * signs)


def token_weights(size: int, counts: np.ndarray | None) -> np.ndarray:
    """Return the SIF weight of each token, [V]; ``counts`` [V] are its occurrences in a corpus."""
    frequencies = 1 / np.arange(2, size + 2)  # Zipf's law
    frequencies /= frequencies.sum()
    weights = SIF / (SIF + frequencies)
    if counts is not None:
        weights *= COMMON / (COMMON + counts / counts.sum())
    return weights


@dataclass
class CorpusCounts:
    """The counts of tokens and words in a corpus, and the held-out texts."""

    tokens: np.ndarray  # count of each token, [vocabulary of the teacher]
    words: Counter[tuple[int, ...]] = field(default_factory=Counter)  # words of several tokens
    held_out: list[Any] = field(default_factory=list)

    def count(
        self, reader: Reader, tokenizer: Tokenizer, show: Show, *, inner: Sequence[int] | None
    ) -> None:
        """Count the tokens of a corpus, and its words of several tokens unless ``inner`` is None.

        ``inner`` are the ids of tokens that continue a word. Held-out texts are collected in
        ``held_out`` and not counted.
        """
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
                self.words.update(words_of_several_tokens(ids, inner))
            if len(self.words) > MAX_WORDS:
                self.words = Counter(dict(self.words.most_common(MAX_WORDS // 2)))
            show(BatchDone(len(block)))

    def take_words(self, limit: int) -> dict[tuple[int, ...], int]:
        """Return the most frequent words and their counts, and subtract them from their tokens."""
        words = dict(self.words.most_common(limit))
        for word, count in words.items():
            self.tokens[[*word]] -= count  # once for a token that is twice in the word (rare)
        return words


@dataclass
class Distillation:
    """A run that writes the folder of a student, with its manifest."""

    source: ModelFolder
    output: Path
    dim: int | None = None  # None: DIM, or the maximum if that is less
    words: int | None = None  # number of corpus words that become tokens; None: none
    teacher_options: EmbedOptions = field(default_factory=EmbedOptions)  # device etc.
    reader: Reader | None = None  # reads the corpus
    overwrite: bool = False
    manifest: dict[str, Any] = field(default_factory=dict)

    def execute(self, show: Show = show_nothing) -> dict[str, Any]:
        """Write the folder and return its manifest."""
        source = self.source
        reader = self.reader
        self._refuse_models_without_vectors()
        corpus_paths = reader.source.paths if reader else ()
        inputs: list[str | Path] = [*source.model_files, *corpus_paths]
        with whole_folder(self.output, "distil", overwrite=self.overwrite, inputs=inputs) as folder:
            teacher = RecordEmbedder.open(
                source, replace(self.teacher_options, pooling="mean", normalize=False)
            )
            tokenizer = teacher.runtime.tokenizer
            token_ids = student_ids(tokenizer)
            dim = self._dim(min(teacher.empty_output.shape[-1], len(token_ids) - 1))
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
            piece_counts = counts if reader else None
            variance = self._write_student(folder, tokenizer, states, pieces, piece_counts, dim)
            self.manifest = source_entries(source, teacher.runtime.spec) | {
                "corpus": corpus_paths,
                "tokens": len(pieces),
                "words": len(words),
                "dim": dim,
                "variance": variance,
                "sha256": sha256(folder / TABLE),
            }
            if corpus.held_out:
                with TemporaryDirectory() as directory:
                    plain = Path(directory)  # a student without the corpus
                    size = len(token_ids)
                    self._write_student(plain, tokenizer, states[:size], pieces[:size], None, dim)
                    self._measure(corpus.held_out, folder, plain, show)
            write_json(folder / MANIFEST, self.manifest)
        return self.manifest

    def _refuse_models_without_vectors(self) -> None:
        """Raise ModelError for a model without an encoder, a classifier or a cross-encoder."""
        source = self.source
        source.require_encoder()  # a table of token vectors has no encoder
        if not (source.path / MODULES).exists() and command_of(source) == "classify":
            raise ModelError(
                f"{source.path}: a classifier or cross-encoder, which makes no vectors of texts",
                "give a sentence model, or a bare encoder",
            )

    def _dim(self, limit: int) -> int:
        """Return the number of dimensions. Raises UsageError unless it is from 1 to ``limit``."""
        dim = self.dim or min(DIM, limit)
        if not 0 < dim <= limit:
            raise UsageError(
                f"{option('dim', dim)} is not possible", f"give a number from 1 to {limit}"
            )
        return dim

    def _inner_tokens(self, tokenizer: Tokenizer) -> list[int] | None:
        """Return the ids of tokens that continue a word; None if words are not counted.

        Raises ModelError for a vocabulary that is not WordPiece.
        """
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
        self, teacher: RecordEmbedder, pieces: Sequence[tuple[int, ...]], show: Show
    ) -> np.ndarray:
        """Return the mean state of each piece (a token, or the tokens of a word), [V, H].

        Raises ModelError for NaN or infinity.
        """
        tokenizer = teacher.runtime.tokenizer
        batches = []
        for start in range(0, len(pieces), TOKENS_PER_RUN):
            batch = pieces[start : start + TOKENS_PER_RUN]
            texts = [*map(tokenizer.build_inputs_with_special_tokens, batch)]
            columns = np.array([(index, 0) for index in chain(*texts)], np.uint32)
            tokens = PackedTokens(columns, np.cumsum([0, *map(len, texts)]))
            batches.append(teacher.vectors_of(tokens))
            piece_count = start + len(texts)
            show(Advance(piece_count, "tokens", piece_count / len(pieces)))
        states = np.concatenate(batches)
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
        """Write the folder of a student from states [V, H]; return its share of the variance.

        ``counts`` [V] are the occurrences of the pieces in a corpus, if there is one.
        """
        core: Any = tokenizer.core
        table, variance, *_ = principal_components(states, dim)
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
            "max_length": None,  # no library truncates texts
        }
        write_json(folder / "config.json", config)
        write_modules_file(folder, {"": "StaticEmbedding", "1_Normalize": "Normalize"})
        return variance

    def _measure(self, texts: Sequence[Any], folder: Path, plain: Path, show: Show) -> None:
        """Add the agreement with the teacher to the manifest, for texts that were held out.

        Both the student and ``plain``, a student without the corpus, are compared.
        """
        teacher = RecordVectors(RecordEmbedder.open(self.source, self.teacher_options), texts)
        teacher.execute(show)
        is_compared = np.ones(len(texts), bool)
        for name, path in (("agreement", folder), ("agreement_without_corpus", plain)):
            model = ModelFolder(path, self.output.name)
            student = RecordVectors(RecordEmbedder.open(model, EmbedOptions()), texts)
            student.execute(show)
            agreement = similarity_agreement(teacher.vectors, student.vectors, is_compared)
            self.manifest[name] = asdict(agreement)
