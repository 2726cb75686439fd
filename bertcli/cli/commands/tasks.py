"""The commands of task heads: words at masks, classes, tags, answers, choices and ranks."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import bertcli
from bertcli.cli.display.console import Console, stdin_is_terminal
from bertcli.cli.options.common import (
    JOIN,
    PARSE_SPECIAL,
    TEXT_FIELD,
    ComputeOptions,
    ConsoleOptions,
    HeadModelOptions,
    InputOptions,
    OutputOptions,
    RowOutput,
    TaskFileOptions,
    reader_of,
)
from bertcli.cli.options.completion import complete_field
from bertcli.cli.options.groups import (
    INPUT,
    LAYOUT,
    OptionGroup,
    argument,
    flag,
    number,
    option,
    record,
)
from bertcli.errors import UsageError
from bertcli.formats.registry import NESTED
from bertcli.formats.tables import TableHeader
from bertcli.model_folder.files import files_for
from bertcli.records.reader import Reader
from bertcli.tasks.needed_models import NEEDED_MODELS

if TYPE_CHECKING:
    from bertcli.tasks.head import Stream


class MaskOptions(OptionGroup, panel=LAYOUT):
    """How long texts with masks are."""

    max_length = number(
        "Maximum tokens of a text or window (default: the model's limit).",
        low=3,
        envvar="BERTCLI_MAX_LENGTH",
    )


class CutOptions(MaskOptions):
    """How long texts are."""

    parse_special = PARSE_SPECIAL


class StrideOptions(MaskOptions):
    """How long texts or their windows are."""

    stride = number("Split long texts into windows that share N tokens.", low=0)
    parse_special = PARSE_SPECIAL


class QuestionOptions(OptionGroup):
    """Questions and contexts."""

    question = option("Question for the context, or for every text of the input.", "TEXT")
    context = option("Context for every question.", "TEXT")
    question_field = option(
        "Column or key of the question.",
        "NAME",
        default="question",
        panel=INPUT,
        complete=complete_field,
    )
    context_field = option(
        "Column or key of the context.",
        "NAME",
        default="context",
        panel=INPUT,
        complete=complete_field,
    )

    def reader(self, files: TaskFileOptions) -> Reader:
        """Return the reader of questions, of contexts, or of both."""
        objects = self.question is None and self.context is None
        both = self.question is not None and self.context is not None
        if not (objects or both or files.input or files.files_from) and stdin_is_terminal():
            missing = "context" if self.context is None else "question"
            raise UsageError(f"no {missing}", f"give --{missing} TEXT, or -i FILE")
        return reader_of(
            self,
            files,
            objects=objects,
            texts=(self.question,) if both else (),
            text_field=self.question_field if self.question is None else self.context_field,
            pair_field=self.context_field if objects else None,
            no_pairs=not objects,
        )


class ChoiceOptions(OptionGroup, panel=INPUT):
    """Prompts and choices."""

    texts: list[str] | None = argument(
        "A prompt and its choices (default: read --input or stdin).", "PROMPT CHOICE..."
    )
    prompt_field = option(
        "Column or key of the prompt.", "NAME", default="prompt", complete=complete_field
    )
    choices_field = option(
        "Column or key of the list of choices.",
        "NAME",
        default="choices",
        complete=complete_field,
    )

    def __post_init__(self) -> None:
        """Name what a `Chooser` is told: the choices among the arguments, or their field."""
        self.field = self.choices_field
        self.choices = tuple(self.texts or ())[1:]

    def reader(self, files: TaskFileOptions) -> Reader:
        """Return the reader of prompts, whose extra fields hold the choices."""
        if self.texts and len(self.choices) < 2:
            raise UsageError(
                "choose needs a prompt and at least two choices",
                "give PROMPT CHOICE CHOICE..., or --input FILE",
            )
        names = ",".join(filter(None, (files.keep_fields, self.choices_field)))
        return reader_of(
            files,
            objects=True,
            texts=tuple(self.texts or ())[:1],
            no_pairs=True,
            text_field=None if self.texts else self.prompt_field,
            keep="*" if files.keep_fields == "*" else names,
        )


def open_head(
    task: str, model: HeadModelOptions, length: OptionGroup, compute: ComputeOptions
) -> tuple[Any, Any]:
    """Return the task, as Python names it, and the model for it; its backend is imported here.

    Raises UsageError for the default model, which has no head.
    """
    needed = NEEDED_MODELS[task]
    model.refuse_default(needed.command, needed.model, needed.origin)
    folder = model.folder(files_for(compute.dtype))
    from bertcli.tasks.head import Head, Settings

    kind = getattr(bertcli, task)
    head = Head.open(folder, kind.architecture, record(Settings, length, compute))
    return kind, head


def run_task(
    task: str,
    groups: Sequence[OptionGroup],
    reader: Reader,
    model: HeadModelOptions,
    length: OptionGroup,
    compute: ComputeOptions,
    output: OutputOptions,
    console: ConsoleOptions,
) -> None:
    """Read texts, write what a task with these options makes of them, report warnings and counts.

    ``groups`` have the fields of the task.
    """
    console.beside_output = output.on_terminal
    form = output.form()
    kind, head = open_head(task, model, length, compute)
    judge = record(kind, *groups, head=head)
    stream = judge.stream(reader)
    from bertcli.tasks.results import fields_written, row, tabular

    if form != "table":
        reader.reserve(fields_written(judge.blank, flat=form not in NESTED) - stream.consumed)
    batches = console.track(stream)
    written: Iterable[Sequence[Any]] = batches
    if form in NESTED:
        written = ([row(result) for result in batch] for batch in batches)
    elif form != "table":
        written = tabular(batches, judge.blank, reader, stream.consumed)
    inputs = reader.source.inputs
    view = "results_view"
    with output.open(form, inputs, model, view=view, run=stream.run) as write:
        for rows in written:
            write(rows)
    report(stream, console)


def report(stream: "Stream", console: Console) -> None:
    """Report warnings and counts of a pass."""
    tally = stream.tally
    advice = "; --stride N tags all of them" if isinstance(stream.task, bertcli.Tagger) else ""
    console.truncated(tally, stream.task.layout.max_length, advice)
    if stream.task.head.runtime.spec.reading.token is None:  # it is to be in the text
        console.special_tokens(tally)
    console.empty(tally)
    console.close(stream.reader)


class WordOptions(OptionGroup):
    """The words predicted."""

    top_k = number("Number of results, best first.", "--top-k", "-k", default=5)
    targets = option("Score only these words.", "W1,W2,...")

    def __post_init__(self) -> None:
        """Split the words to compare; none are all. UsageError when --targets names none."""
        words = tuple(word.strip() for word in (self.targets or "").split(",") if word.strip())
        if self.targets is not None and not words:
            raise UsageError("--targets names no word", "for example --targets saw,heard")
        self.targets = words


def fill_mask(
    source: InputOptions,
    model: HeadModelOptions,
    words: WordOptions,
    length: MaskOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Predict the words at [MASK].

    $ bertcli fill-mask 'Paris is the [MASK] of France.' -m bert-base-uncased
    $ bertcli fill-mask 'He [MASK] her.' --targets saw,heard -m bert-base-uncased
    """
    run_task("MaskFiller", [words], source.reader(), model, length, compute, output, console)


def next_sentence(
    source: InputOptions,
    model: HeadModelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Score how likely the second of two sentences is to follow the first.

    $ bertcli next-sentence 'How old are you?' 'I am six.' -m bert-base-uncased
    $ bertcli next-sentence --pairs pairs.tsv -m bert-base-uncased
    """
    reader = paired(source).reader()
    run_task("NextSentencePredictor", [], reader, model, length, compute, output, console)


def paired(source: InputOptions) -> InputOptions:
    """Return the options with the second of two texts as the pair of the first; stdin has pairs."""
    texts = source.texts or []
    pair = source.pair or []
    named = (*texts, *pair, source.input, source.pairs, source.files_from)
    if source.input_format == "auto" and not any(named) and not stdin_is_terminal():
        return source.changed(pairs="-")
    if not texts or pair:
        return source
    if len(texts) != 2:
        raise UsageError(
            f"next-sentence takes two sentences, not {len(texts)}",
            "quote each of them; a file of pairs goes to --pairs",
        )
    return source.changed(texts=texts[:1], pair=texts[1:])


class LabelOptions(OptionGroup, panel="Labels"):
    """The labels returned, and their scores."""

    top_k = number("Return the N most likely labels as a list.", "--top-k", "-k")
    threshold = option(
        "Return all labels with at least this score as a list (multi-label models: 0.5).",
        "SCORE",
        annotation=float | None,
    )
    scores: Literal["top", "all"] = option(
        "all: also return the score of every label, in the model's order.", default="top"
    )
    logits = flag("Return raw scores, without softmax or sigmoid.")

    def __post_init__(self) -> None:
        """Say whether a `Classifier` gives all scores."""
        self.all_scores = self.scores == "all"


def classify(
    source: InputOptions,
    model: HeadModelOptions,
    labels: LabelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Classify texts or pairs, or score how relevant one text is to another.

    $ bertcli classify 'A wonderful film.' -m textattack/bert-base-uncased-imdb
    $ bertcli classify --pairs pairs.tsv -m cross-encoder/ms-marco-TinyBERT-L2-v2
    $ bertcli classify -i reviews.csv --text-field body -m MODEL -o labels.csv
    """
    run_task("Classifier", [labels], source.reader(), model, length, compute, output, console)


class RankedOptions(OptionGroup):
    """A query, and texts to sort."""

    query: str = argument("Text to search for.", "QUERY")
    texts: list[str] | None = argument("Texts to sort (default: read --input or stdin).", "TEXT...")
    top_k = number("Number of texts to return, best first (default: all).", "--top-k", "-k")
    text_field = TEXT_FIELD
    join = JOIN


def rerank(
    asked: RankedOptions,
    files: TaskFileOptions,
    model: HeadModelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Rank texts by relevance to a query with a cross-encoder.

    $ bertcli rerank 'late delivery' -i reviews.txt --top-k 5 -m CROSS_ENCODER
    $ bertcli rerank 'late delivery' 'It came on time.' 'It never came.' -m CROSS_ENCODER
    """
    form = output.form()
    reader = reader_of(asked, files, no_pairs=True, hit_rows=True)
    kind, head = open_head("Reranker", model, length, compute)
    from bertcli.tasks.rerank import BLANK_HIT, ranked, ranked_row

    stream = kind(head, query=asked.query).stream(reader)
    reader.reserve(frozenset((*BLANK_HIT, "truncated")))
    inputs = reader.source.inputs
    about = (asked.query,)
    with output.open(form, inputs, model, view="ranking_view", about=about) as write:
        windows = console.track(stream)
        best = ranked(windows, asked.top_k)
        rows = [ranked_row(result, flat=form not in NESTED) for result in best]
        write(best if form == "table" else rows or [TableHeader({**BLANK_HIT, "truncated": 0})])
    report(stream, console)


class EntityOptions(OptionGroup):
    """How entities are found."""

    aggregation: Literal["none", "simple", "first", "average", "max"] = option(
        "How tokens are merged into entities. none: not at all; simple: neighbours with the "
        "same label; first, average, max: each word gets one label before.",
        default="simple",
        envvar="BERTCLI_AGGREGATION",
    )
    ignore_labels = option("Labels to leave out.", "L1,L2,...", default="O")

    def __post_init__(self) -> None:
        """Split the labels, for a `Tagger`."""
        self.ignored = tuple(label for label in self.ignore_labels.split(",") if label)


def tag(
    source: InputOptions,
    model: HeadModelOptions,
    entities: EntityOptions,
    length: StrideOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Find entities in texts, with label, score and character offsets.

    $ bertcli tag 'Angela lives in Berlin.' -m dslim/bert-base-NER
    $ bertcli tag -i articles.jsonl --stride 32 -m dslim/bert-base-NER -o tags.jsonl

    Only entities in the text are returned; its pair, if any, serves as context.
    """
    run_task("Tagger", [entities], source.reader(), model, length, compute, output, console)


class AnswerOptions(OptionGroup):
    """The answers returned."""

    top_k = number("Number of results, best first.", "--top-k", "-k", default=1)
    max_answer_length = number("Maximum tokens of an answer.", default=15)
    no_answer = flag("Allow an empty answer if the context contains none.")


def answer(
    asked: QuestionOptions,
    answers: AnswerOptions,
    files: TaskFileOptions,
    model: HeadModelOptions,
    length: StrideOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Find the answer to a question in a context; long contexts are split into windows.

    $ bertcli answer --question 'Who?' --context 'He said so.' -m M
    $ bertcli answer -i questions.jsonl --no-answer -m M
    $ bertcli answer --question 'Who?' -i contexts.txt -m M

    A record of JSONL, CSV or Parquet has the fields question and context, and optionally id.
    """
    reader = asked.reader(files)
    run_task("Answerer", [answers, asked], reader, model, length, compute, output, console)


def choose(
    choices: ChoiceOptions,
    files: TaskFileOptions,
    model: HeadModelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Choose the continuation that fits a prompt best.

    $ bertcli choose 'She opened the door.' 'She went in.' 'It was a fish.' -m M
    $ bertcli choose -i prompts.jsonl -m M

    A record has the fields prompt and choices, a list of texts. "best" counts from 0.
    """
    reader = choices.reader(files)
    run_task("Chooser", [choices], reader, model, length, compute, output, console)
