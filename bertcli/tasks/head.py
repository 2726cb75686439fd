"""Models with a task head, and the base class of tasks, which read texts and yield results.

A task is a few small functions: the tokens of texts (`layout`, `prepare`), the outputs for a batch
of packed states (`finish`), and the result fields of a text (`fields`). `HeadTask` runs them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bertcli.embedding.options import (
    EmbedOptions,
    default_prompt,
    is_cross_encoder,
    prepare_records,
)
from bertcli.embedding.pooling import split_by_sizes
from bertcli.embedding.record_embedder import RecordEmbedder, refuse_infinite
from bertcli.engines.compute import Compute
from bertcli.engines.engine import (
    MODEL_COLUMNS,
    ModelSpec,
    PackedTokens,
    Reduction,
    Runtime,
    StateSelection,
    result_of,
)
from bertcli.engines.runtime import (
    open_runtime,
    open_tokenizer,
    refuse_pairs,
    token_limit,
    window_characters,
)
from bertcli.errors import InputError, ModelError, UsageError, option
from bertcli.families.structure import HEAD_PARTS
from bertcli.keywords import init_fields, options_from
from bertcli.model_folder.files import files_for
from bertcli.model_folder.find import find_model
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.models.config import BertConfig
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts, Reader
from bertcli.records.record import Record
from bertcli.tasks.needed_models import NEEDED_MODELS
from bertcli.tasks.results import Result, row
from bertcli.tokenizing.batch import Encoded, Layout
from bertcli.tokenizing.run import Prepare, TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.versions import __version__, versions

if TYPE_CHECKING:
    from typing_extensions import Self

CLASSIFIER = "BertForSequenceClassification"  # or the last module of a sentence model
SPECIAL_MASK = "special_tokens_mask"  # a column of tokens
AROUND_TEXTS = ("cls_token", "sep_token", "pad_token")  # roles of tokens
FIRST_WINDOW = 64  # records in the first window; small, so that output starts early


class HeadTraits(NamedTuple):
    """The properties of a class of heads, and its command."""

    command: str
    takes_extra_ids: bool = False  # texts may have ids of extra embeddings
    is_per_text: bool = False  # one output per text, from its first token or the mean
    is_at_masks: bool = False  # outputs only at [MASK]
    shares_layer_names: bool = False  # with other heads, so that config.json decides


HEADS: Mapping[str, HeadTraits] = {
    "BertForMaskedLM": HeadTraits("fill-mask", takes_extra_ids=True, is_at_masks=True),
    "BertForNextSentencePrediction": HeadTraits(
        "next-sentence", takes_extra_ids=True, is_per_text=True
    ),
    "BertForSequenceClassification": HeadTraits(
        "classify", takes_extra_ids=True, is_per_text=True, shares_layer_names=True
    ),
    "BertForTokenClassification": HeadTraits("tag", takes_extra_ids=True, shares_layer_names=True),
    "BertForQuestionAnswering": HeadTraits("answer", shares_layer_names=True),
    "BertForMultipleChoice": HeadTraits("choose", is_per_text=True, shares_layer_names=True),
}
COMMANDS = {head.command: architecture for architecture, head in HEADS.items()}


@dataclass(frozen=True)
class Settings(Compute):
    """Settings of a head. None means the setting of the model's folder."""

    max_length: int | None = None
    stride: int | None = None  # tokens shared by consecutive windows of a long text
    parse_special: bool = True
    window: int = 4096


@dataclass(frozen=True)
class Head:
    """A loaded model with a head.

    A cross-encoder or sentence model that ends in a Dense layer has an ``embedder`` instead, whose
    vectors are the logits. Its labels are in config.json.
    """

    runtime: Runtime
    settings: Settings
    max_length: int  # truncation length of texts, special tokens included
    prepare: Prepare  # converts records to the records that are tokenized
    folder: ModelFolder
    embedder: RecordEmbedder | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.runtime.tokenizer

    @cached_property
    def labels(self) -> list[str]:
        """The label names, in the order of the logits."""
        config = self.runtime.config
        return config.labels(self.embedder.width if self.embedder else config.num_labels)

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        architecture: str,
        settings: Settings = Settings(),
        *,
        one_given: bool = False,
    ) -> Head:
        """Load a model with a head of this class, one of `HEADS`.

        With ``one_given``, a text has the output of one token, the one at `PackedTokens.read`.
        Raises ModelError for a folder that is not a complete BERT with this head, UsageError for a
        setting that this model or this machine does not support.
        """
        if architecture == CLASSIFIER and is_pooled_head(folder):
            options = {name: value for name, value in vars(settings).items() if name != "stride"}
            embedder = RecordEmbedder.open(folder, EmbedOptions(**options), scores=True)
            runtime = embedder.runtime
            limit = embedder.max_length
            return cls(runtime, settings, limit, embedder.prepare, folder, embedder)
        encoder = folder.encoder
        config = encoder.config
        traits = HEADS[architecture]
        refuse_other_head(encoder, config, architecture)
        tokenizer = open_tokenizer(
            encoder, parse_special=settings.parse_special, reads_extra_ids=traits.takes_extra_ids
        )
        if traits.is_at_masks:
            token = tokenizer.roles["mask_token"]
            mask = tokenizer.special_ids().get(token)
            if mask is None:
                raise ModelError(f"{encoder}: the vocabulary has no mask token {token}")
            reading = StateSelection(one_given=True) if one_given else StateSelection(token_id=mask)
        else:
            head_layer = config.structure.head_layer(HEAD_PARTS[architecture])
            mean = head_layer is not None and head_layer.mean
            reading = StateSelection(first_token=traits.is_per_text and not mean, token_mean=mean)
        spec = ModelSpec(encoder, settings, architecture, reading)
        prompt = default_prompt(folder) if architecture == CLASSIFIER else ""
        runtime = open_runtime(spec, lambda: tokenizer)
        limit = token_limit(runtime.config, tokenizer, settings.max_length)
        prepare = partial(prepare_records, prompt=prompt, lower=False)
        return cls(runtime, settings, limit, prepare, folder)

    def layout(self, *columns: str) -> Layout:
        """Return the layout of texts: truncated to the limit, with these additional columns."""
        return Layout(
            columns=tuple(
                dict.fromkeys(
                    (*MODEL_COLUMNS, *columns, *self.runtime.extra_columns.needed_columns)
                )
            ),
            max_length=self.max_length,
            truncation="longest_first",
        )

    def run(self, texts: PackedTokens, finish: Reduction) -> Any:
        """Return, for each text, the result of ``finish`` on its states, or its logits."""
        if self.embedder:
            return self.embedder.vectors_of(texts)
        return result_of(self.runtime.run(texts, finish))


def refuse_other_head(folder: ModelFolder, config: BertConfig, architecture: str) -> None:
    """Raise ModelError if config.json states another head whose layers have the same names."""
    stated = next(iter(config.architectures), "")
    if stated == architecture or stated not in HEADS:
        return
    if HEADS[architecture].shares_layer_names and HEADS[stated].shares_layer_names:
        stated_class = config.family.their_class(stated)
        needed_class = config.family.their_class(architecture)
        raise ModelError(
            f"{folder}: config.json says {stated_class}, and {needed_class} is needed",
            f"bertcli {HEADS[stated].command} is for this model; give another {option('model')}",
        )


def head_logits(model: Any, states: Any, lengths: Sequence[int], *, is_per_text: bool) -> Any:
    """Return the logits of each text, or of every token, [L, ...] per text."""
    logits = model.packed_logits(states)
    return logits if is_per_text else split_by_sizes(logits, lengths)


@dataclass(frozen=True)
class HeadTask(ABC):
    """A head with the options of a task, ready to run.

    A call from Python returns the rows that the task's command writes: one per text, or the row
    itself for a single text. It takes the options of the task (top_k, threshold, aggregation and so
    on), which replace those of the object for this call; `load` takes those of the model (device,
    dtype, max_length and so on).
    """

    head: Head = field(repr=False)

    architecture: ClassVar[str] = CLASSIFIER  # the class of its head
    settings_class: ClassVar[type[Settings]] = Settings
    consumed: ClassVar[frozenset[str]] = frozenset()
    plain_field: ClassVar[str] = ""  # the field that plain text holds, if any

    @classmethod
    def open_head(cls, folder: ModelFolder, settings: Any) -> Head:
        """Load a model with the head of this task; ``settings`` are of `settings_class`.

        Raises as `Head.open` does.
        """
        return Head.open(folder, cls.architecture, settings)

    @classmethod
    def load(
        cls,
        name: str | Path | None = None,
        *,
        revision: str | None = None,
        offline: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model by a name as in `find_model`, or by its folder.

        ``options`` are those of `settings_class`. Raises UsageError without a name if the task
        needs a head: the default model has none.
        """
        needed = NEEDED_MODELS.get(cls.__name__)
        if name is None and needed:
            raise UsageError(
                f"{cls.__name__}.load needs the name of {needed.model}", f"give {needed.origin}"
            )
        settings = options_from(cls.settings_class, options)
        folder = find_model(
            os.fspath(name or DEFAULT_MODEL),
            files=files_for(settings.dtype),
            revision=revision,
            offline=offline,
        )
        return cls(cls.open_head(folder, settings))

    def __call__(self, texts: str | Record | Iterable[Any], **options: Any) -> Any:
        """Return the row of each text, or of a single text. Texts are as in `Embedder.encode`.

        ``options`` replace those of this object. Raises UsageError for an unknown or invalid one.
        """
        names = [name for name in init_fields(type(self)) if name != "head"]
        defaults = {name: getattr(self, name) for name in names}
        task = options_from(type(self), {**defaults, **options}, head=self.head)
        reader = GivenTexts(texts, Input())
        stream = task.stream(reader)
        rows = [row(result) for window in stream for result in window]
        return rows[0] if reader.alone else rows

    @property
    @abstractmethod
    def blank(self) -> dict[str, Any]:
        """The fields of an example result; a list has one item."""

    @abstractmethod
    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the result fields of a text from the outputs for its windows."""

    def table_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a result for a table, where each item of a list has a row."""
        return fields

    def finish(self, model: Any, states: Any, lengths: Sequence[int]) -> Any:
        """Return the outputs for each text, as `fields` takes them, from packed states."""
        return head_logits(model, states, lengths, is_per_text=self.is_per_text)

    @property
    def is_per_text(self) -> bool:
        """True if a text has one output, from its first token or the mean of its tokens."""
        return HEADS[self.architecture].is_per_text

    @cached_property
    def _ids_around_texts(self) -> set[int | None]:
        """The ids of tokens like [CLS], [SEP] and padding."""
        tokenizer = self.head.tokenizer
        return {tokenizer.special_ids().get(tokenizer.roles[role]) for role in AROUND_TEXTS}

    def tokens_inside(self, item: Encoded) -> list[bool]:
        """Return, for each token of a text, False if it is one like [CLS], [SEP] or padding.

        These may also be written in the text. The text needs the column ``SPECIAL_MASK``.
        """
        tokens = zip(item.columns["input_ids"], item.columns[SPECIAL_MASK], strict=True)
        return [
            not is_special and token_id not in self._ids_around_texts
            for token_id, is_special in tokens
        ]

    @property
    def window_characters(self) -> int:
        """The maximum number of characters of a window."""
        return window_characters(self.head.runtime)

    @property
    def layout(self) -> Layout:
        """The layout of the tokens of a text."""
        return self.head.layout()

    def prepare(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records to tokenize."""
        return self.head.prepare(records)

    def ask(self, item: Encoded) -> Encoded:
        """Return the tokenized text to predict for. Raises InputError for a text to skip."""
        return item

    def judge(self, batch: Sequence[Encoded]) -> list[Result]:
        """Return the results of tokenized texts; each text must come with all its windows.

        Raises InputError for a text without tokens, ModelError for a result that is not finite.
        """
        for item in batch:
            if self.is_per_text and not item.length:  # possible without special tokens
                raise InputError(
                    f"{item.record.where}: has no tokens",
                    f"leave it out, or give {option('skip_empty')}",
                )
        refuse_pairs(batch, self.head.runtime.config)
        outputs = self.outputs(batch)
        refuse_infinite([item.record for item in batch], outputs, "its logits contain")
        results = []
        pairs = zip(batch, outputs, strict=True)
        for _, windows in groupby(pairs, key=lambda pair: pair[0].sample):  # of one text
            items, window_outputs = zip(*windows, strict=True)
            fields = self.fields(items, window_outputs)
            dropped_tokens = sum(item.dropped_tokens for item in items)
            results.append(Result(items[0].record, items[0].sample, fields, dropped_tokens))
        return results

    def outputs(self, batch: Sequence[Encoded]) -> list[np.ndarray]:
        """Return the outputs of the model for each tokenized text, as `fields` takes them."""
        return list(self.head.run(self.model_input(batch), self.finish))

    def model_input(self, batch: Sequence[Encoded]) -> PackedTokens:
        """Return the model input of tokenized texts."""
        runtime = self.head.runtime
        return PackedTokens.of(runtime.extra_columns.add_to(batch, runtime.tokenizer))

    def encoded(self, run: TokenizeRun) -> Iterator[Sequence[Encoded]]:
        """Yield batches of tokenized texts; all windows of a text are in one batch.

        The first batches are small, so that output starts early.
        """
        size = FIRST_WINDOW
        for window in run:
            rows = list(window)
            start = 0
            end = len(window)
            for stop in accumulate(window.windows_per_record):
                if stop - start >= size or stop == end:
                    items = run.reader.collect(self.ask, rows[start:stop])
                    run.skipped += stop - start - len(items)
                    yield items
                    size = max(size, 2 * (stop - start))
                    start = stop

    def stream(self, reader: Reader) -> Stream:
        """Return a pass over the records of a reader."""
        return Stream(self, reader)


class Stream:
    """One pass of a task over a reader. Iterate once; ``tally`` and ``reader`` hold the counts.

    The fields ``consumed`` by the model or the task are not carried to the output.
    """

    def __init__(self, task: HeadTask, reader: Reader) -> None:
        head = task.head
        self.task = task
        self.reader = reader
        self.run = TokenizeRun(
            reader,
            head.tokenizer,
            task.layout,
            head.settings.window,
            characters=task.window_characters,
            growing=True,
            prepare=task.prepare,
        )
        self.tally = self.run.tally
        self.consumed = task.consumed | head.runtime.extra_columns.request_ids(reader)

    def __iter__(self) -> Iterator[list[Result]]:
        """Yield the results of windows of records, in input order."""
        for batch in self.task.encoded(self.run):
            results = [self._with_carried_fields(result) for result in self.task.judge(batch)]
            if results:
                yield results

    def _with_carried_fields(self, result: Result) -> Result:
        """Return a result whose record has only the carried fields."""
        fields = result.record.extra or {}
        carried = {name: fields[name] for name in fields if name not in self.consumed}
        return result._replace(record=result.record._replace(extra=carried or None))


def command_of(folder: ModelFolder) -> str:
    """Return the command for the head in config.json; "" without one."""
    architecture = next(iter(folder.config.architectures), "")
    return HEADS[architecture].command if architecture in HEADS else ""


def source_entries(model: ModelFolder, spec: ModelSpec) -> dict[str, Any]:
    """Return the manifest entries of the source model, and of the versions used to read it."""
    return {
        "bertcli": __version__,
        "versions": versions("openvino", "tokenizers", "numpy"),
        "model": model.name,
        "weights": spec.folder.weights.digests,
    }


def is_pooled_head(folder: ModelFolder) -> bool:
    """Return True for a sentence model or cross-encoder that ends in a layer with scores."""
    modules = folder.modules
    if not modules or modules[-1].class_name != "Dense":
        return False
    return is_cross_encoder(folder) or bool(folder.encoder.config.id2label)
