"""A model with a task head, ready to run: texts in windows, logits of each text, in order.

Logits are computed on packed states, batch by batch, so that what is kept of a text is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from bertcli.checkpoints.load import examine, load, read_config
from bertcli.checkpoints.load_report import LoadReport
from bertcli.checkpoints.scan import bert_folder
from bertcli.errors import ModelError, UsageError
from bertcli.hub import ModelFolder
from bertcli.inference.devices import device_and_dtype, refuse_several
from bertcli.inference.encoder import Encoder, Finish, Reading, Tokens, budget_of, make_fast
from bertcli.inference.fits import refuse_pairs, refuse_unfit
from bertcli.models.heads import BertForQuestionAnswering, BertWithHead
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.tasks.results import Result
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.run import TokenCounts, TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer

M = TypeVar("M", bound=BertWithHead)
Warn = Callable[[str], None]

COLUMNS = ("input_ids", "token_type_ids")
FIRST = 64  # records of the first window, so that a reader of the output sees something soon

# A class -> its command, and a checkpoint that has its head.
TASKS = {
    "BertForMaskedLM": ("fill-mask", "bert-base-uncased"),
    "BertForNextSentencePrediction": ("next-sentence", "bert-base-uncased"),
    "BertForSequenceClassification": ("classify", "cross-encoder/ms-marco-TinyBERT-L2-v2"),
    "BertForTokenClassification": ("tag", "dslim/bert-base-NER"),
    "BertForQuestionAnswering": ("answer", "deepset/bert-base-cased-squad2"),
    "BertForMultipleChoice": ("choose", "a BERT trained on SWAG"),
}
ALIKE = (  # their layers have the same names: only the config tells them apart
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForMultipleChoice",
)


@dataclass(frozen=True)
class Settings:
    """Where and how a head runs. None means what the model's folder says."""

    max_length: int | None = None
    stride: int | None = None  # tokens that windows of a long text share
    parse_special: bool = True
    device: str = "auto"
    dtype: str = "auto"
    batch_tokens: int | None = None
    window: int = 4096


@dataclass(frozen=True)
class Head(Generic[M]):
    """A model with a head, its tokenizer, and what runs it."""

    folder: Path
    model: M
    tokenizer: Tokenizer
    encoder: Encoder
    settings: Settings
    warn: Warn

    @classmethod
    def open(
        cls,
        found: ModelFolder,
        kind: type[M],
        settings: Settings = Settings(),
        warn: Warn = lambda message: None,
    ) -> Head[M]:
        """Load a model of this class.

        Raises ModelError for a folder that is not a whole BERT with this head, UsageError for a
        choice that this model or this machine cannot follow.
        """
        folder = bert_folder(found.path)
        refuse_other_head(folder, kind)
        tokenizer = Tokenizer.load(folder, parse_special=settings.parse_special)
        for message in tokenizer.warnings:
            warn(message)
        refuse_unfit(folder, read_config(folder), tokenizer)
        refuse_several(settings.device, "name one of them")
        device, dtype = device_and_dtype(settings.device, settings.dtype, warn)
        model, _ = load(folder, kind, dtype=dtype)
        model = model.to(device)
        linear = make_fast(model.bert, settings.dtype, device, tokenizer)
        budget = budget_of(settings.batch_tokens, device)
        encoder = Encoder(model.bert, Reading(), budget, device, warn, linear=linear)
        return cls(folder, model, tokenizer, encoder, settings, warn)

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the logits."""
        config = self.model.bert.config
        return [config.id2label.get(i, f"LABEL_{i}") for i in range(config.num_labels)]

    @property
    def max_length(self) -> int:
        """The number of tokens, special ones included, that a text is cut to."""
        fits = self.model.bert.config.max_position_embeddings
        asked = self.settings.max_length
        if asked is not None and asked > fits:
            raise UsageError(
                f"--max-length {asked} is more than the {fits} positions of this model",
                f"give at most {fits}",
            )
        return asked or min(self.tokenizer.limit or fits, fits)

    def layout(self, *columns: str) -> Layout:
        """Return how texts become tokens: cut to the limit, with further columns."""
        return Layout(
            columns=(*COLUMNS, *columns), max_length=self.max_length, truncation="longest_first"
        )

    def outputs(self, batch: Sequence[Encoded], finish: Finish) -> list[Tensor]:
        """Return what ``finish`` makes of each text's states, on the CPU in float32.

        Raises ModelError for a text with a result that is not finite.
        """
        refuse_pairs(batch, self.model.bert.config.type_vocab_size)
        found = self.encoder.run([tokens_of(item) for item in batch], finish)
        for item, output in zip(batch, found, strict=True):
            if not output.isfinite().all():
                raise ModelError(
                    f"{item.record.where}: its logits hold NaN or infinity",
                    "bertcli inspect --verify checks the weights; float16 overflows, float32 "
                    "does not",
                )
        return found

    def token_logits(self, states: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
        """Finish with the logits of every token, [L, ...] a text; several are put side by side."""
        logits = self.model.logits(states)
        if isinstance(logits, tuple):
            logits = torch.stack(logits, -1)
        parts: Sequence[Tensor] = logits.split(list(lengths))
        return parts


Judge = Callable[[list[Encoded]], list[Result]]
Prepare = Callable[[Record], Record]  # what is done to each record before


@dataclass
class Stream:
    """One pass of a task over a source. Iterate once; ``tally`` and ``reader`` hold the counts."""

    reader: Reader
    tally: TokenCounts
    windows: Iterator[list[Result]] = field(repr=False)
    max_length: int
    masks: bool = False  # whether special tokens belong in these texts
    blank: Mapping[str, Any] = field(default_factory=dict)  # fields of a result, as an example
    consumed: frozenset[str] = frozenset()  # carried fields that the task reads, not the output

    def __iter__(self) -> Iterator[list[Result]]:
        """Yield the results of windows of records, in input order."""
        return (window for window in self.windows if window)


def streamed(
    head: Head[M], reader: Reader, layout: Layout, judge: Judge, prepare: Prepare | None = None
) -> Stream:
    """Return the pass that tokenizes records and gives ``judge`` windows of them."""
    run = TokenizeRun(reader, head.tokenizer, layout, head.settings.window, prepare=prepare)
    return Stream(reader, run.tally, map(judge, growing(run)), head.max_length)


def growing(windows: Iterable[list[Encoded]]) -> Iterator[list[Encoded]]:
    """Cut windows into parts that become larger; the items of one record stay together."""
    size = FIRST
    for window in windows:
        part: list[Encoded] = []
        for _, same in groupby(window, key=lambda item: item.sample):
            if len(part) >= size:
                yield part
                size, part = 2 * size, []
            part += same
        yield part


def tokens_of(item: Encoded) -> Tokens:
    """Return an item as the model takes it."""
    return Tokens(tuple(item.columns["input_ids"]), tuple(item.columns["token_type_ids"]))


def refuse_other_head(folder: Path, kind: type[BertWithHead]) -> None:
    """Raise a ModelError that names the command or the model to take instead, unless all is there.

    What else may be wrong with a checkpoint is said when it is loaded.
    """
    command, example = TASKS[kind.__name__]
    config = read_config(folder)
    named = next(iter(config.architectures), "")
    alike = kind.__name__ in ALIKE or (kind is BertForQuestionAnswering and config.num_labels != 2)
    if alike and named in ALIKE and named != kind.__name__:
        raise ModelError(
            f"{folder}: config.json says {named}, and bertcli {command} needs {kind.__name__}",
            f"bertcli {TASKS[named][0]} is for this model; bertcli {command} takes another "
            f"--model, for example {example}",
        )
    report = examine(folder, kind)
    if _lacks_head(report):
        where = report.files[0] if len(report.files) == 1 else folder
        raise ModelError(
            f"{where}: {'; '.join(report.faults())}",
            f"give --model a checkpoint with that head, for example {example}; this one is enough "
            f"for {', '.join(report.classes)}",
        )


def _lacks_head(report: LoadReport) -> bool:
    head = [name for name in report.missing if not name.startswith("bert.") or "pooler" in name]
    return bool(head) and len(head) == len(report.missing) and not report.mismatched
