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
from bertcli.embedding.options import EmbedOptions, resolve_options
from bertcli.embedding.record_embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS, RecordEmbedder
from bertcli.embedding.sentence_modules import unit_vectors
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

# Any other option of `encode` loads the model again.
OPTIONS_WITHOUT_RELOAD = {
    *("prompt", "prompt_name", "normalize", "dim", "dim_last", "special_tokens", "window"),
    *("max_length", "on_truncate", "stride", "overlap", "at"),
}
SYNONYMS = {  # arguments of sentence-transformers -> fields of EmbedOptions
    "truncate_dim": "dim",
    "normalize_embeddings": "normalize",
}
# Options, and arguments of sentence-transformers, that are not fields of EmbedOptions.
OTHER_OPTIONS = (
    "precision",
    "pre_split",
    "batch_size",
    "show_progress_bar",
    "convert_to_numpy",
    "convert_to_tensor",
)


@dataclass(frozen=True)
class Embedder(RecordEmbedder):
    """A loaded model that turns texts of Python into arrays of vectors."""

    requested: Mapping[str, Any] = field(default_factory=dict)  # options of `load` and `encode`

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
        parsed = embed_options(options)
        files = files_for(parsed.dtype)
        folder = find_model(os.fspath(name), files=files, revision=revision, offline=offline)
        return replace(cls.open(folder, parsed, reads_extra_ids=True), requested=options)

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
            return self._with_options(options).encode(texts)
        run = RecordVectors(self, texts, pre_split=bool(self.requested.get("pre_split")))
        vectors = self._execute(run)
        if self.requested.get("convert_to_tensor"):
            require_torch("convert_to_tensor")
            from bertcli.engines.torch_engine import tensors_of

            vectors = tensors_of(vectors)
        return vectors[0] if run.given_texts.alone else vectors

    def encode_query(self, texts: str | Record | Iterable[Any], **options: Any) -> Any:
        """Return the vectors of queries, by default with the model's query prompt."""
        return self._for_role(QUERY_PROMPTS, options).encode(texts)

    def encode_document(self, texts: str | Record | Iterable[Any], **options: Any) -> Any:
        """Return the vectors of documents, by default with the model's document prompt."""
        return self._for_role(DOCUMENT_PROMPTS, options).encode(texts)

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
            rows = unit_vectors(rows)
            columns = unit_vectors(columns)
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

    def _for_role(self, prompts: Sequence[str], options: Mapping[str, Any]) -> Self:
        """Return an embedder for queries or documents, with changed options.

        ``prompts`` is QUERY_PROMPTS or DOCUMENT_PROMPTS: the model's prompt of the first known name
        is used, unless the user gave a prompt or its name. If queries and documents have different
        routes in the model, that of the role is used.
        """
        embedder = self._with_options(options) if options else self
        requested = embedder.requested
        has_prompt = requested.get("prompt") is not None or requested.get("prompt_name")
        prompt = embedder.options.prompt
        is_role = embedder._takes_queries == (prompts == QUERY_PROMPTS)
        if embedder.terms and has_routes(embedder.folder) and not is_role:
            embedder = embedder._other_route
        if has_prompt:
            return replace(embedder, options=replace(embedder.options, prompt=prompt))
        return embedder.with_prompt(prompts)

    @property
    def _takes_queries(self) -> bool:
        """True if the route of a model with different routes is that of queries."""
        return self.requested.get("prompt_name") == QUERY_PROMPTS[0]

    @cached_property
    def _other_route(self) -> Self:
        """The embedder for the other route: documents if this one takes queries, and vice versa."""
        route = DOCUMENT_PROMPTS[0] if self._takes_queries else QUERY_PROMPTS[0]
        return self._with_options({"prompt": None, "prompt_name": route})

    def _execute(self, run: RecordVectors) -> Any:
        """Execute a run; return what `encode` returns for several texts, as arrays."""
        self.divide_texts(run.reader)
        run.execute()
        tally = run.tally
        blocks = run.blocks
        if tally.truncated and self.options.on_truncate == "warn":
            LOG.warn(tally.truncation(self.max_length))
        if self.options.on_truncate == "late-chunk" and tally.too_long:
            LOG.note(tally.several_windows(self.window_length))
        if names := self.term_names:
            return [names.of(terms) for block in blocks for terms in block.vectors]
        precision = self.requested.get("precision", "float32")
        stacked = run.vectors
        ranges = None
        if precision in RANGED:
            ranges = ranges_of([stacked.reshape(-1, stacked.shape[-1])])  # per dimension
        stacked = quantize(stacked, precision, ranges)
        if self.makes_chunks:  # a text starts at each chunk numbered 0
            fields = [extra for block in blocks for extra in block.records.extras or ()]
            starts = np.flatnonzero([not (extra or {}).get("chunk") for extra in fields])
        elif self.options.per_token:
            row_counts = [len(rows) for block in blocks for rows in block.vectors]
            starts = np.cumsum([0, *row_counts])[:-1]
        else:
            return stacked
        return np.split(stacked, starts[1:]) if len(starts) else []

    def _with_options(self, options: Mapping[str, Any]) -> Self:
        """Return an embedder with changed options, sharing the loaded model if possible."""
        requested = {**self.requested, **options}
        old = embed_options(self.requested)
        new = embed_options(requested)
        changed = {name for name, value in vars(new).items() if value != vars(old)[name]}
        if changed - OPTIONS_WITHOUT_RELOAD or (changed and (self.terms or self.late)):
            embedder = self.open(self.folder, new, reads_extra_ids=True)
            return replace(embedder, requested=requested)
        resolved = resolve_options(new, self.sentence)
        return replace(self, options=resolved, requested=requested).with_clipped_dim(new.dim)


def embed_options(requested: Mapping[str, Any]) -> EmbedOptions:
    """Return EmbedOptions for options as given in Python.

    Raises UsageError for an unknown option or value.
    """
    options: dict[str, Any] = {}
    for name, value in requested.items():
        if name in OTHER_OPTIONS:
            continue
        options[SYNONYMS.get(name, name)] = value
        if name in ("dim", "truncate_dim"):  # truncate_dim applies after normalization
            options["dim_last"] = name == "truncate_dim" and value is not None
    # In sentence-transformers, False means the model's setting.
    if "normalize_embeddings" in requested:
        options["normalize"] = options["normalize"] or None
    if "device" in options:
        options["device"] = str(options["device"])  # may be a torch.device
    precision = requested.get("precision", "float32")
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}", f"one of {', '.join(PRECISIONS)}")
    return options_from(EmbedOptions, options)
