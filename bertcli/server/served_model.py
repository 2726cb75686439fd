"""The model that is served: what its routes need is opened when a request first asks for it.

A runner takes the inputs of a request, texts or token ids, and returns a result for each.

    model = ServedModel(find_model("all-MiniLM-L6-v2", files=MODEL_FILES), "minilm", EmbedOptions())
    runner = model.vectors(dim=64)
    rows = runner.encoded(["a text"], None)
    runner.run(rows)                    # vectors [64]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf
from threading import Lock
from time import monotonic
from typing import Any, Literal

import numpy as np

from bertcli.embedding.options import (
    EmbedOptions,
    is_cross_encoder,
    required_option,
    resolve_options,
)
from bertcli.embedding.pooling import EmbeddedBlock
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.engines.runtime import refuse_extra_embeddings
from bertcli.errors import BertcliError, option
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts
from bertcli.records.record import Record
from bertcli.server.requests import Ids, RequestError
from bertcli.tasks.classify import SCORES, Classifier
from bertcli.tasks.head import Head, Settings, command_of, is_pooled_head
from bertcli.tokenizing.batch import Encoded, TokenBatch
from bertcli.tokenizing.run import TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer

View = Literal["text", "token", "sparse"]  # a vector of a text or of each token, or terms
Purpose = Literal["embedding", "token", "sparse", "classifier"]
ROUTES: dict[Purpose, str] = {
    "embedding": "/v1/embeddings, /embed, /embed_all and /similarity",
    "token": "/embed_all",
    "sparse": "/embed_sparse",
    "classifier": "/predict and, with one label, /rerank",
}
STATIC_ROUTES = "/v1/embeddings, /embed and /similarity"  # of a table of token vectors
MAX_VARIANTS = 64  # of options, kept open
RETRY_SECONDS = 60  # after which what could not be opened is tried again
UNSUPPORTED = 424  # the status of text-embeddings-inference for a model without what a route needs


class EmbeddingRunner:
    """An embedder that takes texts or token ids."""

    def __init__(self, embedder: RecordEmbedder) -> None:
        self.embedder = embedder
        self.tokenizer: Tokenizer = embedder.runtime.tokenizer
        self.limit = embedder.max_length

    def encoded(self, inputs: Sequence[str | Ids], side: Any) -> list[Encoded]:
        """Return the tokens of texts, or of lists of token ids, truncated to the limit."""
        if isinstance(inputs[0], list):
            return [self._of_ids(ids, index, side) for index, ids in enumerate(inputs)]  # type: ignore[arg-type]
        return [*self.embedder.tokenized(inputs, side)]  # type: ignore[arg-type]

    def prompt(self, name: str | None) -> str:
        """Return the prompt of this name, "" for None. Raises RequestError for an unknown one."""
        prompts = self.embedder.sentence.prompts
        if name is not None and name not in prompts:
            known = ", ".join(prompts) or "none"
            raise RequestError(f"unknown prompt_name {name!r}; the model's prompts: {known}")
        return "" if name is None else prompts[name]

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids of the special tokens before and after a text."""
        if not self.embedder.options.special_tokens:
            return [], []
        special = {*self.tokenizer.all_special_ids}
        marker = next(number for number in range(len(self.tokenizer)) if number not in special)
        framed = self.tokenizer.build_inputs_with_special_tokens([marker])
        start = framed.index(marker)
        return framed[:start], framed[start + 1 :]

    def _of_ids(self, ids: Ids, index: int, side: str | None) -> Encoded:
        """Return token ids as a text, with special tokens unless they have them already."""
        for number in ids:
            if self.tokenizer.core.id_to_token(number) is None:
                raise RequestError(
                    f"input {index}: id {number} is not in the vocabulary of "
                    f"{len(self.tokenizer)} tokens",
                    code="invalid_token_id",
                )
        before, after = self.frame
        if ids[: len(before)] == before and ids[len(ids) - len(after) :] == after:
            ids = ids[len(before) : len(ids) - len(after)]
        kept = max(0, self.limit - len(before) - len(after))
        dropped_tokens = max(0, len(ids) - kept)
        side = side or self.tokenizer.truncation_side
        ids = ids[dropped_tokens:] if side == "left" else ids[: len(ids) - dropped_tokens]
        framed = [*before, *ids, *after]
        is_special = [True] * len(before) + [False] * len(ids) + [True] * len(after)
        columns = {
            "input_ids": framed,
            "token_type_ids": [0] * len(framed),
            "tokens": self.tokenizer.convert_ids_to_tokens(framed),
            "offset_mapping": [(0, 0)] * len(framed),
            "sequence_ids": [None if special else 0 for special in is_special],
            "positions": range(len(framed)),
        }
        record = Record("", line=index + 1)
        names = self.embedder.layout.columns
        return Encoded(record, {name: columns[name] for name in names}, dropped_tokens, index)

    def run(self, rows: Sequence[Encoded]) -> list[np.ndarray]:
        """Return the vector [D] of each text; its token vectors [L, D], or terms [k, 2]."""
        batch = TokenBatch.of([row._replace(sample=index) for index, row in enumerate(rows)])
        results: list[np.ndarray] = []
        for block in self.embedder.embed_window(batch):
            if isinstance(block, EmbeddedBlock):
                results.extend(block.vectors)
        return results


@dataclass(frozen=True)
class LogitTask(Classifier):
    """A classifier whose results are logits."""

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the logits [k] of a text or a pair."""
        return {"logits": outputs[0]}


class LogitRunner:
    """A model with a classification head, which takes texts and pairs."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.task = LogitTask(head)
        self.labels = head.labels
        self.limit = head.max_length

    def encoded(self, pairs: Sequence[tuple[str, str | None]], side: Any) -> list[Encoded]:
        """Return the tokens of texts and pairs, truncated to the limit."""
        records = [Record(text, pair, line=line) for line, (text, pair) in enumerate(pairs, 1)]
        layout = replace(self.task.layout, truncation_side=side)
        reader = GivenTexts(records, Input())
        run = TokenizeRun(reader, self.head.tokenizer, layout, prepare=self.task.prepare)
        return [row for batch in run for row in batch]

    def run(self, rows: Sequence[Encoded]) -> list[np.ndarray]:
        """Return the logits [k] of each text or pair."""
        results = self.task.judge([row._replace(sample=index) for index, row in enumerate(rows)])
        return [result.fields["logits"] for result in results]

    def scores(self, logits: np.ndarray, *, raw: bool) -> list[float]:
        """Return the scores of logits [k], or with ``raw`` the logits.

        One label: sigmoid. Several: the model's function, which changes nothing for regression.
        """
        if raw:
            return logits.tolist()
        function = "Sigmoid" if len(self.labels) == 1 else self.task.function
        return SCORES[function](logits).tolist()


class NotOpenError(Exception):
    """A model that a request needs is not open yet."""


class ServedModel:
    """A model folder, and what was opened of it so far. May be used from several threads.

    ``if_open`` is the same model, and raises NotOpenError where this one takes time to open.
    """

    def __init__(self, folder: ModelFolder, name: str, options: EmbedOptions) -> None:
        self.folder = folder
        self.name = name
        self.options = options
        self.names = {name, folder.name, name.rstrip("/").rpartition("/")[2]}
        self._lock = Lock()
        self._opened: dict[tuple[Any, ...], Any] = {}
        self._failures: dict[tuple[Any, ...], tuple[str, float]] = {}  # reasons and times
        self._may_open = True
        self.if_open = copy(self)
        self.if_open._may_open = False

    @property
    def purpose(self) -> Purpose:
        """What the model is for, according to its files."""
        has_head = is_cross_encoder(self.folder) or is_pooled_head(self.folder)
        if not (has_head or self.folder.modules or self.folder.is_static):
            has_head = command_of(self.folder) == "classify"
        if has_head:
            return "classifier"
        purposes: dict[str, Purpose] = {
            option("sparse"): "sparse",
            option("token_vectors"): "token",
        }
        return purposes.get(required_option(self.folder), "embedding")

    @property
    def routes(self) -> str:
        """The routes for what the model computes, for messages and `GET /info`."""
        return STATIC_ROUTES if self.folder.is_static else ROUTES[self.purpose]

    def open(self) -> EmbeddingRunner | LogitRunner:
        """Open what the model is for. Raises as `RecordEmbedder.open` and `Head.open` do."""
        match self.purpose:
            case "classifier":
                return self._once(("head",), self._open_head)
            case "token" | "sparse" as view:
                return self._once((view,), lambda: self._open_view(view))
        return self._once(("text",), lambda: self._open_view("text"))

    def vectors(
        self,
        view: View = "text",
        *,
        normalize: bool | None = None,
        dim: int | None = None,
        prompt_name: str | None = None,
    ) -> EmbeddingRunner:
        """Return the embedder with these options; None is the model's setting.

        Raises RequestError for options that it does not have, and for a model without vectors.
        """
        runner = self._needed((view,), lambda: self._open_view(view))
        if normalize is None and dim is None and prompt_name is None:
            return runner
        runner.prompt(prompt_name)
        if dim is not None and dim > runner.embedder.width:
            raise RequestError(
                f"dimensions is {dim}, and the vectors have {runner.embedder.width}",
                code="invalid_dimensions",
            )
        options = replace(self._options(view), prompt_name=prompt_name)
        if view == "text":
            options = replace(options, normalize=normalize, dim=dim)
        return self._needed(
            (view, normalize, dim, prompt_name), lambda: self._changed(runner, options)
        )

    def logits(self) -> LogitRunner:
        """Return the classification head. Raises RequestError for a model without one."""
        return self._needed(("head",), self._open_head)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        runner = self.open()
        return runner.tokenizer if isinstance(runner, EmbeddingRunner) else runner.head.tokenizer

    def _options(self, view: View) -> EmbedOptions:
        match view:
            case "token":
                return replace(self.options, pooling="none")
            case "sparse":
                return replace(self.options, pooling="auto", sparse=True)
        return self.options

    def _open_view(self, view: View) -> EmbeddingRunner:
        return EmbeddingRunner(RecordEmbedder.open(self.folder, self._options(view)))

    def _changed(self, runner: EmbeddingRunner, options: EmbedOptions) -> EmbeddingRunner:
        """Return an embedder with other options, which shares the opened model if it can."""
        embedder = runner.embedder
        if embedder.terms or embedder.late:
            return EmbeddingRunner(RecordEmbedder.open(self.folder, options))
        changed = replace(embedder, options=resolve_options(options, embedder.sentence))
        return EmbeddingRunner(changed.with_clipped_dim(options.dim))

    def _open_head(self) -> LogitRunner:
        options = vars(self.options)
        names = [field.name for field in fields(Settings) if field.name != "stride"]
        settings = Settings(**{name: options[name] for name in names})
        head = Head.open(self.folder, Classifier.architecture, settings)
        refuse_extra_embeddings(head.runtime.spec.folder, head.runtime.config)
        return LogitRunner(head)

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return what was made for a key, or make it; the oldest of many variants is dropped."""
        if key in self._opened:
            return self._opened[key]
        if not self._may_open:
            raise NotOpenError
        with self._lock:
            if key not in self._opened:
                variants = [known for known in self._opened if len(known) > 1]
                if len(variants) >= MAX_VARIANTS:
                    del self._opened[variants[0]]
                self._opened[key] = make()
            return self._opened[key]

    def _needed(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return what a request needs; RequestError if the model does not have it."""
        reason, failure_time = self._failures.get(key, ("", -inf))
        if monotonic() - failure_time > RETRY_SECONDS:
            try:
                return self._once(key, make)
            except BertcliError as error:
                reason = str(error).replace(str(self.folder), self.name)
                self._failures[key] = (reason, monotonic())
        raise RequestError(
            f"{reason}; this model answers {self.routes}",
            status=UNSUPPORTED,
            code="unsupported_by_model",
        )
