"""The commands of task heads: `bertcli fill-mask`, `classify`, `tag`, `answer` and others."""

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
    LineOutput,
    OutputOptions,
    RowOutput,
    TaskFileOptions,
    max_length_option,
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
from bertcli.formats.registry import ENCODED_ROWS, NESTED, TXT
from bertcli.formats.tables import TableHeader
from bertcli.model_folder.files import files_for
from bertcli.records.reader import Reader
from bertcli.tasks.entities import MASK, SCORED_MASK
from bertcli.tasks.needed_models import NEEDED_MODELS

if TYPE_CHECKING:
    from bertcli.tasks.head import Stream
    from bertcli.tasks.results import Result


class MaxLengthOptions(OptionGroup, panel=LAYOUT):
    """Maximum length of texts."""

    max_length = max_length_option(
        "Maximum tokens of a text or window (default: the model's limit).", low=3
    )


class TruncationOptions(MaxLengthOptions):
    """Maximum length and special tokens of texts."""

    parse_special = PARSE_SPECIAL


class WindowOptions(MaxLengthOptions):
    """Maximum length of texts or their windows, and special tokens."""

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
        has_both = self.question is not None and self.context is not None
        has_none = self.question is None and self.context is None
        if not (has_none or has_both or files.input or files.files_from) and stdin_is_terminal():
            missing = "context" if self.context is None else "question"
            raise UsageError(f"no {missing}", f"give --{missing} TEXT, or -i FILE")
        return reader_of(
            self,
            files,
            objects=has_none,
            texts=(self.question,) if has_both else (),
            text_field=self.question_field if self.question is None else self.context_field,
            pair_field=self.context_field if has_none else None,
            no_pairs=not has_none,
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
        """Set the fields of a `Chooser`: the choices among the arguments, or their field."""
        self.field = self.choices_field
        self.choices = tuple(self.texts or ())[1:]

    def reader(self, files: TaskFileOptions) -> Reader:
        """Return the reader of prompts, whose carried fields hold the choices."""
        if self.texts and len(self.choices) < 2:
            raise UsageError(
                "choose needs a prompt and at least two choices",
                "give PROMPT CHOICE CHOICE..., or --input FILE",
            )
        kept_fields = "*"
        if files.keep_fields != "*":
            kept_fields = ",".join(filter(None, (files.keep_fields, self.choices_field)))
        return reader_of(
            files,
            objects=True,
            texts=tuple(self.texts or ())[:1],
            no_pairs=True,
            text_field=None if self.texts else self.prompt_field,
            keep=kept_fields,
        )


def open_head(
    task_name: str, model: HeadModelOptions, compute: ComputeOptions, *groups: OptionGroup
) -> tuple[Any, Any]:
    """Return the class of a task, such as `Tagger`, and the model with a head for it.

    ``groups`` are further options of the model. Raises UsageError for the default model if the
    task needs a head, which it lacks. Imports the backend.
    """
    if needed := NEEDED_MODELS.get(task_name):
        model.refuse_default(needed.command, needed.model, needed.origin)
    folder = model.folder(files_for(compute.dtype))
    task_class = getattr(bertcli, task_name)
    settings_class = task_class.settings_class
    settings = record(settings_class, compute, *groups)
    return task_class, task_class.open_head(folder, settings)


def run_task(
    task_name: str,
    groups: Sequence[OptionGroup],
    reader: Reader,
    model: HeadModelOptions,
    length: OptionGroup,
    compute: ComputeOptions,
    output: OutputOptions,
    console: ConsoleOptions,
    view: str = "results_view",
) -> None:
    """Run a task on texts, write its results, and report warnings and counts.

    ``groups`` are the options of the task, from which the fields of its class and of its settings
    are filled. A table is drawn by ``view``, see `OutputOptions.open`.
    """
    console.beside_output = output.on_terminal
    file_format = output.resolve_format()
    task_class, head = open_head(task_name, model, compute, length, *groups)
    task = record(task_class, *groups, head=head)
    stream = task.stream(reader)
    rows_of_batches = rows_to_write(stream, console.track(stream), file_format)
    inputs = reader.source.inputs
    writer = ENCODED_ROWS if file_format == TXT else file_format
    with output.open(writer, inputs, model, view=view, run=stream.run) as write:
        for rows in rows_of_batches:
            write(rows)
    report(stream, console)


def rows_to_write(
    stream: "Stream", batches: "Iterable[list[Result]]", file_format: str
) -> Iterable[Sequence[Any]]:
    """Return batches of results as the writer of a format takes them.

    Reserves the names of the fields that are written. A table on a terminal is drawn from results.
    """
    from bertcli.tasks.results import fields_written, plain_row, row, tabular

    task = stream.task
    reader = stream.reader
    if file_format == "table":
        return batches
    if file_format == TXT:
        null = reader.source.format_options.null
        return ([plain_row(result, task.plain_field, null=null) for result in b] for b in batches)
    is_flat = file_format not in NESTED
    blank = task.table_fields(task.blank) if is_flat else task.blank
    reader.reserve(fields_written(blank, flat=is_flat) - stream.consumed)
    if not is_flat:
        return ([row(result) for result in batch] for batch in batches)
    flat_batches = (
        [result._replace(fields=task.table_fields(result.fields)) for result in batch]
        for batch in batches
    )
    return tabular(flat_batches, blank, reader, stream.consumed)


def report(stream: "Stream", console: Console) -> None:
    """Report warnings and counts of a stream that has been read."""
    tally = stream.tally
    advice = "; --stride N tags all of them" if isinstance(stream.task, bertcli.Tagger) else ""
    console.warn_truncated(tally, stream.task.layout.max_length, advice)
    if stream.task.head.runtime.spec.selection.token_id is None:  # else the text has to contain one
        console.warn_special_tokens(tally)
    console.note_empty(tally)
    console.close(stream.reader)


class WordOptions(OptionGroup):
    """The predicted words."""

    top_k = number("Number of results, best first.", "--top-k", "-k", default=5)
    targets = option("Score only these words.", "W1,W2,...")

    def __post_init__(self) -> None:
        """Split --targets into words; without it, all words are scored.

        Raises UsageError if --targets has no word.
        """
        words = tuple(word.strip() for word in (self.targets or "").split(",") if word.strip())
        if self.targets is not None and not words:
            raise UsageError("--targets names no word", "for example --targets saw,heard")
        self.targets = words


def fill_mask(
    source: InputOptions,
    model: HeadModelOptions,
    words: WordOptions,
    length: MaxLengthOptions,
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
    length: TruncationOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Score how likely the second of two sentences is to follow the first.

    $ bertcli next-sentence 'How old are you?' 'I am six.' -m bert-base-uncased
    $ bertcli next-sentence --pairs pairs.tsv -m bert-base-uncased
    """
    reader = with_pairs(source).reader()
    run_task("NextSentencePredictor", [], reader, model, length, compute, output, console)


def with_pairs(source: InputOptions) -> InputOptions:
    """Return the options with the second of two texts as the pair of the first.

    Without texts and files, stdin has pairs.
    """
    texts = source.texts or []
    pair = source.pair or []
    inputs = (*texts, *pair, source.input, source.pairs, source.files_from)
    if source.input_format == "auto" and not any(inputs) and not stdin_is_terminal():
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
    """The returned labels and scores."""

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
    labels = option(
        "Classify by these labels, without training, with a model of natural language inference "
        "(NLI).",
        "L1,L2,...",
    )
    label: list[str] | None = option(
        "One of these labels, which may contain commas; repeatable.", "LABEL"
    )
    hypothesis = option(
        "Sentence with {} for the label of --labels (default: This example is {}.).", "TEXT"
    )
    multi_label = flag("Score each label of --labels on its own, as several may be true.")

    def __post_init__(self) -> None:
        """Set the fields of `Classifier` and `ZeroShotClassifier`."""
        self.all_scores = self.scores == "all"
        self.is_zero_shot = self.labels is not None or bool(self.label)
        self.labels = (*(self.labels or "").split(","), *(self.label or ()))
        self.labels = tuple(filter(None, map(str.strip, self.labels)))


def classify(
    source: InputOptions,
    model: HeadModelOptions,
    labels: LabelOptions,
    length: TruncationOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Classify texts or pairs, or score how relevant one text is to another.

    $ bertcli classify 'A wonderful film.' -m textattack/bert-base-uncased-imdb
    $ bertcli classify --pairs pairs.tsv -m cross-encoder/ms-marco-TinyBERT-L2-v2
    $ bertcli classify -i reviews.csv --text-field body -m MODEL -o labels.csv
    $ bertcli classify 'It never came.' --labels delivery,price,quality -m NLI_MODEL
    """
    reader = source.reader(no_pairs=labels.is_zero_shot)
    options = (reader, model, length, compute, output, console)
    if labels.is_zero_shot:
        run_task("ZeroShotClassifier", [labels], *options)
    else:
        run_task("Classifier", [labels], *options)


class RankingOptions(OptionGroup):
    """A query, and texts to sort."""

    query: str = argument("Text to search for.", "QUERY")
    texts: list[str] | None = argument("Texts to sort (default: read --input or stdin).", "TEXT...")
    top_k = number("Number of texts to return, best first (default: all).", "--top-k", "-k")
    text_field = TEXT_FIELD
    join = JOIN


def rerank(
    ranking: RankingOptions,
    files: TaskFileOptions,
    model: HeadModelOptions,
    length: TruncationOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Rank texts by relevance to a query with a cross-encoder.

    $ bertcli rerank 'late delivery' -i reviews.txt --top-k 5 -m CROSS_ENCODER
    $ bertcli rerank 'late delivery' 'It came on time.' 'It never came.' -m CROSS_ENCODER
    """
    file_format = output.resolve_format()
    reader = reader_of(ranking, files, no_pairs=True, hit_rows=True)
    task_class, head = open_head("Reranker", model, compute, length)
    from bertcli.tasks.rerank import BLANK_HIT, ranked, ranked_row

    stream = task_class(head, query=ranking.query).stream(reader)
    reader.reserve(frozenset((*BLANK_HIT, "truncated")))
    inputs = reader.source.inputs
    view_arguments = (ranking.query,)
    with output.open(
        file_format, inputs, model, view="ranking_view", view_arguments=view_arguments
    ) as write:
        windows = console.track(stream)
        best = ranked(windows, ranking.top_k)
        rows = [ranked_row(result, flat=file_format not in NESTED) for result in best]
        write(
            best if file_format == "table" else rows or [TableHeader({**BLANK_HIT, "truncated": 0})]
        )
    report(stream, console)


class EntityOptions(OptionGroup):
    """Aggregation and labels of entities."""

    aggregation: Literal["none", "simple", "first", "average", "max"] = option(
        "How tokens are merged into entities. none: not at all; simple: neighbours with the "
        "same label; first, average, max: each word gets one label before.",
        default="simple",
        envvar="BERTCLI_AGGREGATION",
    )
    ignore_labels = option("Labels to leave out.", "L1,L2,...", default="O")
    redact = option(
        "Return texts with entities replaced by [PER], [LOC] and so on: all, or those with these "
        "labels. Long texts are always tagged in windows.",
        "[LABELS]",
    )
    redact_with = option(
        "Text that replaces each entity; {label} and {score} are those of the entity "
        f"(default: {MASK}).",
        "MASK",
    )
    scores = flag("Replace entities by label and score: [PER 0.98].")

    def __post_init__(self) -> None:
        """Set the fields of `Tagger` with the labels to leave out or replace, and the mask."""
        self.ignored = tuple(label for label in self.ignore_labels.split(",") if label)
        if self.redact is None:
            self.redact = False
        elif self.redact == "*":
            self.redact = True
        if self.redact_with is None:
            self.redact_with = SCORED_MASK if self.scores else MASK

    def refuse_text_as_labels(self, source: InputOptions) -> None:
        """Raise UsageError if the only text follows --redact, which takes it as its labels."""
        has_input = source.texts or source.input or source.pairs or source.files_from
        if isinstance(self.redact, str) and not has_input and stdin_is_terminal():
            raise UsageError(
                f"no input: {self.redact!r} are the labels of --redact",
                "give TEXT before --redact, or -i FILE",
            )


def tag(
    source: InputOptions,
    model: HeadModelOptions,
    entities: EntityOptions,
    length: WindowOptions,
    compute: ComputeOptions,
    output: LineOutput,
    console: ConsoleOptions,
) -> None:
    """Find entities in texts, with label, score and character offsets; or replace them.

    $ bertcli tag 'Angela lives in Berlin.' -m dslim/bert-base-NER
    $ bertcli tag -i articles.jsonl --stride 32 -m dslim/bert-base-NER -o tags.jsonl
    $ bertcli tag -i letters.txt --redact PER,LOC -m dslim/bert-base-NER -o redacted.txt

    Only entities in the text are returned; its pair, if any, serves as context. -f txt writes only
    the redacted texts, one per line, or NUL-terminated with -0.
    """
    entities.refuse_text_as_labels(source)
    if output.resolve_format() == TXT:
        if entities.redact is False:
            raise UsageError("txt holds redacted texts alone", "give --redact, or -f jsonl")
        if source.keep_fields:
            raise UsageError("txt holds the texts alone, not the fields of --keep-fields")
    view = "results_view" if entities.redact is False else "redacted_view"
    reader = source.reader()
    run_task("Tagger", [entities], reader, model, length, compute, output, console, view)


class AnswerOptions(OptionGroup):
    """The returned answers."""

    top_k = number("Number of results, best first.", "--top-k", "-k", default=1)
    max_answer_length = number("Maximum tokens of an answer.", default=15)
    no_answer = flag("Allow an empty answer if the context contains none.")


def answer(
    question: QuestionOptions,
    answers: AnswerOptions,
    files: TaskFileOptions,
    model: HeadModelOptions,
    length: WindowOptions,
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
    reader = question.reader(files)
    run_task("Answerer", [answers, question], reader, model, length, compute, output, console)


def choose(
    choices: ChoiceOptions,
    files: TaskFileOptions,
    model: HeadModelOptions,
    length: TruncationOptions,
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
