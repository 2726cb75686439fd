"""Texts to an array of vectors from Python: `bertcli.Embedder`.

    embedder = Embedder.load("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
    embedder.encode(["a", "b"])                      # float32 [2, 384]
    embedder.encode([("a", "b")], normalize=True)    # a pair, with an option of `bertcli embed`
    embedder.encode(['I love NLP!'], word_vectors="mean")   # a list: [4, 384] for each text

The vectors are those of `bertcli embed`, to the last bit, and come as fast.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Embedder
from bertcli.embedding.options import EmbedOptions, settled
from bertcli.embedding.sentence_modules import unit
from bertcli.embedding.sparse import has_routes
from bertcli.errors import LOG, ModelError, OutputError, UsageError
from bertcli.formats.precision import PRECISIONS, RANGED, quantize, ranges_of
from bertcli.io.publish import whole_folder
from bertcli.keywords import options_from
from bertcli.model_folder.files import files_for
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.records.record import Record
from bertcli.versions import require_torch

if TYPE_CHECKING:
    from typing_extensions import Self

# Options that an open model follows; what else is given to `encode` opens the model again.
AT_ANY_TIME = {
    *("prompt", "prompt_name", "normalize", "dim", "dim_last", "special_tokens", "window"),
    *("max_length", "on_truncate", "stride", "overlap", "at"),
}
NAMES = {  # of arguments of sentence-transformers -> in EmbedOptions
    "truncate_dim": "dim",
    "normalize_embeddings": "normalize",
}
# Options that are not of how a vector is made, and arguments of theirs that change none.
IDLE = (
    "precision",
    "pre_split",
    "batch_size",
    "show_progress_bar",
    "convert_to_numpy",
    "convert_to_tensor",
)


@dataclass(frozen=True)
class TextEmbedder(Embedder):
    """A model that turns texts into vectors."""

    asked: Mapping[str, Any] = field(default_factory=dict)  # the options it was loaded with

    @classmethod
    def load(
        cls,
        name: str | Path = DEFAULT_MODEL,
        *,
        revision: str | None = None,
        offline: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model: a name as in `find_model`, or a folder.

        ``options`` are those of `bertcli embed`, with underscores: ``pooling``, ``layers`` (a
        number, several, or as on the command line), ``device`` and so on. Raises ModelError for
        a model that is not found or not a whole BERT, UsageError for options that do not fit.
        """
        if isinstance(name, Path) and not name.is_dir():
            raise ModelError(f"{name}: folder not found")
        chosen = embed_options(options)
        place = os.fspath(name)
        files = files_for(chosen.dtype)
        folder = find_model(place, files=files, revision=revision, offline=offline)
        return replace(cls.open(folder, chosen, extra=True), asked=options)

    def __repr__(self) -> str:
        name = self.folder.name
        width = self.get_embedding_dimension()
        return f"Embedder({name!r}, {width} dimensions, at most {self.max_length} tokens)"

    def encode(self, texts: str | Record | Iterable[Any], **options: Any) -> Any:
        """Return the vectors of texts in their order, [n, D], or of a single text, [D].

        ``texts`` is any iterable, read as it is needed: of strings, of pairs (two strings), of
        records (whose ``extra`` has the ids that a model with extra embeddings needs); with
        ``pre_split``, of lists of words. With a vector for each token, word or chunk, the result is
        a list of arrays [L, D]; with ``sparse``, one of {token: weight}. ``convert_to_tensor``
        gives tensors of torch, on the CPU, in place of arrays.

        ``options`` replace those that the model was loaded with; what it computes (pooling, layers,
        device, dtype) is better given there, as it has to be opened again. Arguments of
        sentence-transformers mean what they mean there; batch_size has no effect. What truncation
        dropped is reported through `logging`. Raises InputError for what is no text, or too long
        with ``on_truncate="error"``.
        """
        if options:
            return self._with(options).encode(texts)
        run = RecordVectors(self, texts, pre_split=bool(self.asked.get("pre_split")))
        vectors = self._encoded(run)
        if self.asked.get("convert_to_tensor"):
            require_torch("convert_to_tensor")
            from bertcli.engines.torch_engine import tensors_of

            vectors = tensors_of(vectors)
        return vectors[0] if run.given.alone else vectors

    def encode_query(self, texts: str | Record | Iterable[Any], **options: Any) -> Any:
        """Return the vectors of queries, by default with the model's prompt for them."""
        return self._prompted(QUERY_PROMPTS, options).encode(texts)

    def encode_document(self, texts: str | Record | Iterable[Any], **options: Any) -> Any:
        """Return the vectors of texts to search, by default with the model's prompt for them."""
        return self._prompted(DOCUMENT_PROMPTS, options).encode(texts)

    def similarity(self, one: Any, other: Any) -> np.ndarray:
        """Return how alike vectors [n, D] are to others [m, D], [n, m], as the model's files say.

        That is their cosine or their product. UsageError for another function.
        """
        function = self.sentence.similarity or "cosine"
        if function not in ("cosine", "dot"):
            raise UsageError(f"the similarity of this model, {function}, is unknown", "use NumPy")
        rows, columns = (np.atleast_2d(np.asarray(x, np.float32)) for x in (one, other))
        if function == "cosine":
            rows = unit(rows)
            columns = unit(columns)
        return np.asarray(rows @ columns.T, np.float32)

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of a vector."""
        return self.options.dim or self.width

    def save(self, folder: str | Path) -> None:
        """Write the files of the model to a new folder, for sentence-transformers as well.

        Raises OutputError for a folder that exists, or is in the folder of the model.
        """
        source = Path(os.path.realpath(self.folder.path))
        if source in Path(os.path.realpath(folder)).parents:
            raise OutputError(
                f"{folder}: in the folder of the model that is saved",
                "save it to a folder elsewhere",
            )
        with whole_folder(Path(folder)) as copy:
            shutil.copytree(source, copy, dirs_exist_ok=True)

    def _prompted(self, names: Sequence[str], options: Mapping[str, Any]) -> Self:
        """Return an embedder with the model's prompt of one of these names, unless one is given.

        Where queries and documents take different routes, it takes that of the first name.
        """
        chosen = self._with(options) if options else self
        has_prompt = chosen.asked.get("prompt") is not None or chosen.asked.get("prompt_name")
        prompt = chosen.options.prompt
        if chosen.terms and has_routes(chosen.folder):
            takes_queries = chosen.asked.get("prompt_name") == QUERY_PROMPTS[0]
            if takes_queries != (names is QUERY_PROMPTS):
                chosen = chosen._other_route
        if has_prompt:
            return replace(chosen, options=replace(chosen.options, prompt=prompt))
        return chosen.with_prompt(names)

    @cached_property
    def _other_route(self) -> Self:
        """The embedder of documents for one of queries, and the other way round."""
        takes_queries = self.asked.get("prompt_name") == QUERY_PROMPTS[0]
        route = DOCUMENT_PROMPTS[0] if takes_queries else QUERY_PROMPTS[0]
        return self._with({"prompt": None, "prompt_name": route})

    def _encoded(self, run: RecordVectors) -> Any:
        self.divided(run.reader)
        run.execute()
        tally = run.tally
        blocks = run.blocks
        if tally.truncated and self.options.on_truncate == "warn":
            LOG.warn(tally.truncation(self.max_length))
        if names := self.term_names:
            return [names.of(terms) for block in blocks for terms in block.vectors]
        precision = self.asked.get("precision", "float32")
        stacked = run.vectors
        flat = stacked.reshape(-1, stacked.shape[-1])  # whose dimensions have ranges
        stacked = quantize(stacked, precision, ranges_of([flat]) if precision in RANGED else None)
        if self.chunks:  # where a piece is the first of its text
            extras = [extra for block in blocks for extra in block.records.extras or ()]
            starts = np.flatnonzero([not (extra or {}).get("chunk") for extra in extras])
        elif self.options.per_token:
            starts = np.cumsum([0, *(len(rows) for block in blocks for rows in block.vectors)])[:-1]
        else:
            return stacked
        return np.split(stacked, starts[1:]) if len(starts) else []

    def _with(self, options: Mapping[str, Any]) -> Self:
        """Return an embedder with other options, of the same open model where that can be."""
        asked = {**self.asked, **options}
        before = embed_options(self.asked)
        chosen = embed_options(asked)
        changed = {name for name in vars(chosen) if vars(chosen)[name] != vars(before)[name]}
        if changed - AT_ANY_TIME or (changed and (self.terms or self.late)):
            return replace(self.open(self.folder, chosen, extra=True), asked=asked)
        embedder = replace(self, options=settled(chosen, self.sentence), asked=asked)
        return embedder.with_dim(chosen.dim)


def embed_options(asked: Mapping[str, Any]) -> EmbedOptions:
    """Return the options of the library for those of `bertcli embed`.

    Raises UsageError for an unknown option or value.
    """
    named: dict[str, Any] = {}
    for name, value in asked.items():
        if name in IDLE:
            continue
        named[NAMES.get(name, name)] = value
        if name in ("dim", "truncate_dim"):  # theirs is of vectors as the folder makes them
            named["dim_last"] = name == "truncate_dim" and value is not None
    if "normalize_embeddings" in asked:  # there, False leaves it to the model
        named["normalize"] = named["normalize"] or None
    if "device" in named:
        named["device"] = str(named["device"])  # also one of torch
    precision = asked.get("precision", "float32")
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}", f"one of {', '.join(PRECISIONS)}")
    return options_from(EmbedOptions, named)
