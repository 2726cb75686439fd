"""A static student of an encoder: a table of token vectors, which needs no network to run.

    run = Distillation(find_model("all-MiniLM-L6-v2", files=MODEL_FILES), Path("student"))
    for step in run:      # how far it is
        ...
    run.manifest

Each token goes through the encoder on its own, as [CLS] token [SEP]; the means of its states are
turned to their principal components, and weighted by how rare the token is (SIF): by Zipf's law of
its rank, or half by that and half by a corpus, which few texts and other texts are then as good
with. The most frequent words of the corpus that are several tokens can be tokens of the student,
which WordPiece then takes for them, as the longest. A text is the mean of its tokens. Special
tokens that no text becomes and unused ones are left out. The row of the unknown token is zero:
model2vec drops such tokens, and sentence-transformers does not, which is the same for vectors of
length 1.

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
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import MODULES, model_files, read_config
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.sentence_modules import put_modules
from bertcli.errors import InputError, ModelError, UsageError
from bertcli.files.atomic import MANIFEST, whole_folder
from bertcli.files.paths import sha256
from bertcli.files.safetensors import write_arrays
from bertcli.files.typed_json import parse, write_json
from bertcli.hub import ModelFolder
from bertcli.inference.progress import Advance, Ran, Step
from bertcli.inference.runner import Tokens
from bertcli.inference.static_engine import unknown_id
from bertcli.records.reader import Reader
from bertcli.tasks.head import command_of, origin
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.run import TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.vectors.compare import similarity_agreement
from bertcli.vectors.embed_run import RecordVectors

TABLE = "model.safetensors"
UNUSED = re.compile(r"\[unused\d+\]")
SIF = 1e-4  # the frequency of a token that counts half
DIM = 256  # where so many are possible
AT_ONCE = 4096  # tokens that are run together
EACH, MOST_HELD_OUT = 10, 1000  # each so many-th text of a corpus is held out, and so many at most
LONGEST = 16  # tokens of a word
MOST_WORDS = 1_000_000  # that are counted: beyond, those that were rare so far are forgotten


def kept_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tokens that a student has too, in their order."""
    core, roles = tokenizer.core, tokenizer.roles
    special = {token.content for token in core.get_added_tokens_decoder().values()}
    special -= {roles["unk_token"], roles["pad_token"]}
    ids = core.get_vocab()
    return sorted(ids[token] for token in ids.keys() - special if not UNUSED.match(token))


def split_words(ids: np.ndarray, inner: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the words of several tokens; ``inner`` are the ids of tokens that go on with one."""
    starts = np.flatnonzero(~np.isin(ids, inner))
    for start, stop in pairwise([*starts.tolist(), len(ids)]):
        if 1 < stop - start <= LONGEST:
            yield tuple(ids[start:stop].tolist())


def tokenizer_json(tokenizer: Tokenizer, tokens: Sequence[str]) -> Any:
    """Return the tokenizer of a student that has these tokens."""
    raw = parse(tokenizer.core.to_str())
    rows, model = {token: row for row, token in enumerate(tokens)}, raw["model"]
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


@dataclass
class Distillation:
    """Writes the folder of a student while it is iterated over; then its ``manifest`` is there."""

    source: ModelFolder
    output: Path
    dim: int | None = None  # None: DIM, or as many as are possible
    words: int | None = None  # of the corpus that become tokens; None: none
    how: EmbedOptions = field(default_factory=EmbedOptions)  # of the teacher: device and so on
    reader: Reader | None = None  # of a corpus
    overwrite: bool = False
    manifest: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Step]:
        """Yield how far it is."""
        source, reader = self.source, self.reader
        read_config(source.path)  # a table of token vectors has no encoder
        if not (source.path / MODULES).exists() and command_of(source) == "classify":
            raise ModelError(
                f"{source.path}: a classifier or cross-encoder, which makes no vectors of texts",
                "give a sentence model, or a bare encoder",
            )
        paths = reader.source.paths if reader else ()
        inputs: list[str | Path] = [*model_files(source.path), *paths]
        with whole_folder(self.output, "distil", overwrite=self.overwrite, inputs=inputs) as folder:
            how = replace(self.how, pooling="mean", normalize=False)
            teacher = Embedder.open(source, how)
            tokenizer = teacher.runtime.tokenizer
            core: Any = tokenizer.core
            ids = kept_ids(tokenizer)
            most = min(teacher.nothing.shape[-1], len(ids) - 1)
            dim = self.dim or min(DIM, most)
            if not 0 < dim <= most:
                raise UsageError(f"--dim {dim} is not possible", f"give a number from 1 to {most}")
            prefix = getattr(core.model, "continuing_subword_prefix", None) or ""
            if self.words and not prefix:
                raise ModelError(f"{source.path}: --words requires a vocabulary of WordPiece")
            inner = [i for token, i in core.get_vocab().items() if token.startswith(prefix)]
            counted = np.zeros(teacher.runtime.config.vocab_size, np.int64)
            split: Counter[tuple[int, ...]] = Counter()
            held_out: list[Any] = []
            if reader:
                layout = Layout(("input_ids",), special_tokens=False)
                for block in TokenizeRun(reader, tokenizer, layout):
                    numbers = np.asarray(block.samples)
                    held = (numbers % EACH == EACH - 1) & (numbers < EACH * MOST_HELD_OUT)
                    held_out += compress(block.records.texts, held)
                    tokens = np.asarray(block.ids, np.int64)[np.repeat(~held, block.lengths)]
                    counted += np.bincount(tokens, minlength=len(counted))
                    if self.words:
                        split.update(split_words(tokens, inner))
                    if len(split) > MOST_WORDS:
                        split = Counter(dict(split.most_common(MOST_WORDS // 2)))
                    yield Ran(len(block))
            words = dict(split.most_common(self.words or 0))
            for word, count in words.items():
                counted[[*word]] -= count  # a token that a word has twice is rare
            counts = np.array([*counted[ids], *words.values()])
            frequencies = 1 / np.arange(2, len(counts) + 2)  # Zipf's law
            frequencies /= frequencies.sum()
            if reader:
                if not counts.any():
                    raise InputError("no text in the corpus", "give files of text")
                frequencies = (frequencies + counts / counts.sum()) / 2
            pieces, parts = [*((index,) for index in ids), *words], []
            for start in range(0, len(pieces), AT_ONCE):
                some = pieces[start : start + AT_ONCE]
                texts = [*map(tokenizer.build_inputs_with_special_tokens, some)]
                columns = np.array([(index, 0) for index in chain(*texts)], np.uint32)
                tokens = Tokens(columns, np.cumsum([0, *map(len, texts)]))
                parts.append(teacher.vectors_of(tokens))
                done = start + len(texts)
                yield Advance(done, "tokens", done / len(pieces))
            states = np.concatenate(parts)
            if not np.isfinite(states).all():
                raise ModelError(
                    f"{source.path}: states of tokens contain NaN or infinity",
                    "bertcli inspect --verify checks the weights",
                )
            table, variance = principal_components(states, dim)
            table *= (SIF / (SIF + frequencies))[:, None]
            table[: len(ids)][np.array(ids) == unknown_id(tokenizer)] = 0
            with (folder / TABLE).open("wb") as file:
                write_arrays(file, {"embeddings": table.astype(np.float32)})
            names = [*map(core.id_to_token, ids)]
            names += ["".join(map(core.id_to_token, word)).replace(prefix, "") for word in words]
            write_json(folder / "tokenizer.json", tokenizer_json(tokenizer, names))
            config = {
                "model_type": "model2vec",
                "architectures": ["StaticModel"],
                "tokenizer_name": source.name,
                "apply_pca": dim,
                "sif_coefficient": SIF,
                "hidden_dim": dim,
                "normalize": True,
                "max_length": None,  # texts are truncated by no library
            }
            write_json(folder / "config.json", config)
            put_modules(folder, {"": "StaticEmbedding", "1_Normalize": "Normalize"})
            self.manifest = origin(source, teacher.runtime.spec) | {
                "corpus": paths,
                "tokens": len(table),
                "words": len(words),
                "dim": dim,
                "variance": variance,
                "sha256": sha256(folder / TABLE),
            }
            if held_out:
                student = ModelFolder(self.output.name, folder, "folder")
                runs = [
                    RecordVectors(Embedder.open(source, self.how), held_out),
                    RecordVectors(Embedder.open(student, EmbedOptions()), held_out),
                ]
                yield from chain(*runs)
                teachers, students = (run.vectors for run in runs)
                agreement = similarity_agreement(teachers, students, np.ones(len(held_out), bool))
                self.manifest["agreement"] = asdict(agreement)
            write_json(folder / MANIFEST, self.manifest)
