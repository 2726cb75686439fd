"""`bertcli.Embedder`: vectors of texts as arrays, from Python.

    embedder = Embedder.load("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
    embedder.encode(["a", "b"])                      # float32 [2, 384]
    embedder.encode([("a", "b")], normalize=True)    # a pair, with an option of `bertcli embed`
    embedder.encode(['I love NLP!'], word_vectors="mean")   # a list: [4, 384] for each text

The vectors are bit-identical to the output of `bertcli embed`, at the same speed.
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

# Options that can change without reloading; any other option of `encode` loads the model again.
AT_ANY_TIME = {
    *("prompt", "prompt_name", "normalize", "dim", "dim_last", "special_tokens", "window"),
    *("max_length", "on_truncate", "stride", "overlap", "at"),
}
NAMES = {  # arguments of sentence-transformers -> fields of EmbedOptions
    "truncate_dim": "dim",
    "normalize_embeddings": "normalize",
}
# Options, and arguments of sentence-transformers, that are not in EmbedOptions.
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

    asked: Mapping[str, Any] = field(default_factory=dict)  # as given to `load` and `encode`

    @classmethod
    def load(
        cls,
        name: str | Path = DEFAULT_MODEL,
        *,
        revision: str | None = None,
        offline: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model by name, as in `find_model`, or from a folder.

        ``options`` are the options of `bertcli embed`, with underscores: ``pooling``, ``layers``
        (an int, a sequence, or a string as on the command line), ``device`` and so on. Raises
        ModelError for a model that is not found or not a complete BERT, UsageError for invalid
        options.
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
        """Return the vectors of texts in order, [n, D], or of a single text, [D].

        ``texts`` is a text or an iterable, read lazily, of strings, of pairs (two strings) or of
        records (whose ``extra`` has the ids that a model with extra embeddings needs); with
        ``pre_split``, of lists of words. With token, word or chunk vectors, the result is a list of
        arrays [L, D]; with ``sparse``, a list of dictionaries {token: weight}. With
        ``convert_to_tensor``, the result has torch tensors on the CPU instead of arrays.

        ``options`` override the options given to `load`. Set pooling, layers, device and dtype in
        `load`: here they load the model again. Arguments of sentence-transformers are accepted with
        the same meaning; batch_size has no effect. Dropped tokens are reported through `logging`.
        Raises InputError for an invalid text, or a truncated one with ``on_truncate="error"``.
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
        """Return the vectors of queries, by default with the model's query prompt."""
        return self._prompted(QUERY_PROMPTS, options).encode(texts)

    def encode_document(self, texts: str | Record | Iterable[Any], **options: Any) -> Any:
        """Return the vectors of documents, by default with the model's document prompt."""
        return self._prompted(DOCUMENT_PROMPTS, options).encode(texts)

    def similarity(self, one: Any, other: Any) -> np.ndarray:
        """Return the similarities [n, m] of vectors [n, D] and [m, D].

        The function is the one in the model's files, cosine (default) or dot product. Raises
        UsageError for any other function.
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
        """Copy the files of the model to a new folder, which sentence-transformers can load too.

        Raises OutputError for a folder that exists, or is inside the folder of the model.
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
        """Return an embedder with the model's prompt for the first known name.

        A prompt or prompt name given by the user is kept. If queries and documents have different
        routes, the route of the names is taken.
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
        """The embedder for the other route: documents if this one takes queries, and vice versa."""
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
        flat = stacked.reshape(-1, stacked.shape[-1])  # [rows, D]: ranges are per dimension
        stacked = quantize(stacked, precision, ranges_of([flat]) if precision in RANGED else None)
        if self.chunks:  # a text starts at each chunk numbered 0
            extras = [extra for block in blocks for extra in block.records.extras or ()]
            starts = np.flatnonzero([not (extra or {}).get("chunk") for extra in extras])
        elif self.options.per_token:
            starts = np.cumsum([0, *(len(rows) for block in blocks for rows in block.vectors)])[:-1]
        else:
            return stacked
        return np.split(stacked, starts[1:]) if len(starts) else []

    def _with(self, options: Mapping[str, Any]) -> Self:
        """Return an embedder with changed options, sharing the loaded model if possible."""
        asked = {**self.asked, **options}
        before = embed_options(self.asked)
        chosen = embed_options(asked)
        changed = {name for name in vars(chosen) if vars(chosen)[name] != vars(before)[name]}
        if changed - AT_ANY_TIME or (changed and (self.terms or self.late)):
            return replace(self.open(self.folder, chosen, extra=True), asked=asked)
        embedder = replace(self, options=settled(chosen, self.sentence), asked=asked)
        return embedder.with_dim(chosen.dim)


def embed_options(asked: Mapping[str, Any]) -> EmbedOptions:
    """Return EmbedOptions for options as given in Python.

    Raises UsageError for an unknown option or value.
    """
    named: dict[str, Any] = {}
    for name, value in asked.items():
        if name in IDLE:
            continue
        named[NAMES.get(name, name)] = value
        if name in ("dim", "truncate_dim"):  # truncate_dim applies after normalization
            named["dim_last"] = name == "truncate_dim" and value is not None
    if "normalize_embeddings" in asked:  # in sentence-transformers, False means the model's setting
        named["normalize"] = named["normalize"] or None
    if "device" in named:
        named["device"] = str(named["device"])  # may be a torch.device
    precision = asked.get("precision", "float32")
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}", f"one of {', '.join(PRECISIONS)}")
    return options_from(EmbedOptions, named)
