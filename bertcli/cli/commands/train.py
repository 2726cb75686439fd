"""The commands of training and evaluation: `bertcli train`, `pretrain` and `evaluate`."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertcli.cli.commands.tasks import TruncationOptions
from bertcli.cli.options.common import (
    DELIMITER,
    DEVICES,
    ENCODING,
    ENCODING_ERRORS,
    FILES,
    FORMAT_OF_FILES,
    JOIN,
    MAX_RECORD_BYTES,
    ON_ERROR,
    ONE_FILE,
    PROMPT,
    PROMPT_NAME,
    TEXT_FIELD,
    ComputeOptions,
    ConsoleOptions,
    FolderOptions,
    ModelOptions,
    ReportOutput,
    field_option,
    fill_input,
    given_field_options,
    given_file,
    max_length_option,
    reader_of,
)
from bertcli.cli.options.groups import (
    COMPUTE,
    INPUT,
    LAYOUT,
    MODEL,
    OUTPUT,
    OptionGroup,
    argument,
    decimal,
    flag,
    number,
    option,
    record,
)
from bertcli.errors import UsageError
from bertcli.formats.registry import JSONL, InputFormat
from bertcli.model_folder.files import MODEL_FILES
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.tasks.examples import examples_source
from bertcli.tasks.learning import FieldNames
from bertcli.training import vocabulary
from bertcli.training.options import (
    MAX_FROZEN_EXAMPLES,
    FineTuningJob,
    PrepareOptions,
    Task,
    TrainingDevice,
    TrainingOptions,
)
from bertcli.training.vocabulary import WordPieceOptions
from bertcli.versions import require_torch

if TYPE_CHECKING:
    from bertcli.training.loop import Ranks, TrainedTask

WARMUP_STEPS = number(
    "Steps in which the learning rate rises from 0 (default: a tenth of all steps).", low=0
)
WEIGHT_DECAY = decimal("Weight decay of AdamW; biases and LayerNorm are excluded.")
MAX_GRAD_NORM = decimal("Clip gradients to this norm; 0: never.")
RUN_FOLDER = option(
    "Folder for the model, checkpoints and log.",
    "DIR",
    "--output",
    "-o",
    annotation=Path,
    panel=OUTPUT,
)
SEED = number(
    "Random seed: new weights, order, dropout, held-out examples.", low=0, envvar="BERTCLI_SEED"
)


class SavingOptions(OptionGroup, panel=OUTPUT, record_class=TrainingOptions):
    """Checkpoints and existing runs."""

    save_every = number("Steps between checkpoints.")
    keep = number("Number of checkpoints to keep.")
    resume = flag("Resume from the last checkpoint, if any.")
    overwrite = flag("Start over and replace an existing run.")


class DeviceOptions(OptionGroup, panel=COMPUTE, record_class=TrainingOptions):
    """Device, precision and memory."""

    device = option(
        "auto (the best available), cpu, cuda, cuda:N, mps or xpu; with torchrun, one GPU per "
        "process.",
        "NAME",
        default="auto",
        envvar="BERTCLI_DEVICE",
        complete=DEVICES,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "Compute precision (autocast); weights stay float32. auto: float32.",
        default="auto",
        envvar="BERTCLI_DTYPE",
    )
    threads = number("CPU threads (default: all cores).", envvar="BERTCLI_THREADS")
    gradient_accumulation_steps = number(
        "Split each batch into N parts: the same result with less memory."
    )
    gradient_checkpointing = flag(
        "Recompute activations in the backward pass: the same result with less memory."
    )

    def __post_init__(self) -> None:
        if self.dtype == "auto":
            self.dtype = "float32"


def extra_option(help_text: str) -> Any:
    """Return the option --extra NAME=FIELD, see `extra_embeddings`."""
    return option(f"{help_text}; repeatable.", "NAME=FIELD", annotation=list[str] | None)


def extra_embeddings(options: Sequence[str] | None) -> dict[str, str]:
    """Return the field with the ids of each extra embedding, from options NAME=FIELD.

    Raises UsageError for a name that is not an identifier, or that is given twice.
    """
    fields: dict[str, str] = {}
    for text in options or ():
        name, _, field = text.partition("=")
        if not (name.isidentifier() and field):
            raise UsageError(
                f"--extra {text}: NAME=FIELD expected", "for example --extra emotion=emotion_ids"
            )
        if name in fields:
            raise UsageError("--extra names an embedding twice")
        fields[name] = field
    return fields


class ExampleOptions(OptionGroup, panel=INPUT, record_class=Input):
    """The task, and the fields and format of the examples."""

    task: Task | None = option("Kind of task (default: by the fields).")
    text_field = field_option("Name of the field text, words, question or anchor.")
    join = JOIN
    pair_field = field_option("Name of the field pair, context or positive.")
    label_field = field_option(
        "Name of the field label, labels, score, tags or answer. Without --task, a list "
        "is labels (of words: tags), a number with a decimal point a score."
    )
    input_format = FORMAT_OF_FILES
    delimiter = DELIMITER
    on_error = ON_ERROR
    encoding = ENCODING
    encoding_errors = ENCODING_ERRORS

    @property
    def fields(self) -> FieldNames:
        """The names of the fields, from their options."""
        return FieldNames(self.text_field, self.pair_field, self.label_field)

    def source(self, path: str) -> Input:
        """Return the source of a file of examples or texts."""
        return examples_source(path, fill_input(self, pair_field=None, format=self.input_format))


class TrainJobOptions(OptionGroup, panel=INPUT):
    """The file of examples and the output folder."""

    file: str | None = argument(
        "Examples: jsonl, csv, tsv or parquet with fields such as text and label.", "FILE"
    )
    input = ONE_FILE
    output = RUN_FOLDER

    def __post_init__(self) -> None:
        self.file = given_file(self.file, self.input)


class MethodOptions(OptionGroup, panel="Training", record_class=FineTuningJob):
    """Trained weights, loss and length."""

    frozen = flag(
        "Train only a head on vectors computed once, or all weights (default: frozen for up "
        f"to {MAX_FROZEN_EXAMPLES:,} labelled examples).",
        "--frozen/--full",
        default=None,
    )
    extra: list[str] | None = extra_option(
        "Train all weights, and an extra embedding NAME for the ids in a field: a list with "
        "one per word or token, or one number for the whole text"
    )
    layers = number("Train layer N and above (default: everything).", low=0)
    class_weights = option("balanced: weight labels by inverse frequency.")
    label_smoothing = decimal("Probability mass moved from each label to the others.", high=0.99)
    max_length = max_length_option(
        "Truncate texts to N tokens (default: the model's limit).", low=3, panel=LAYOUT
    )


class StepOptions(OptionGroup, panel="Training", record_class=TrainingOptions):
    """The optimizer and its schedule."""

    epochs = decimal(
        "Passes over the examples (default: 3; frozen: 30, or 1,000 steps).", default=None
    )
    steps = number("Optimizer steps, instead of --epochs.")
    batch_size = number("Examples per step (default: 32; frozen: 64).", default=None)
    learning_rate = decimal(
        "Peak learning rate, after the warm-up (default: 5e-5; frozen: 1e-3).", default=None
    )
    warmup_steps = WARMUP_STEPS
    weight_decay = WEIGHT_DECAY
    max_grad_norm = MAX_GRAD_NORM
    seed = SEED


class HeldOutOptions(OptionGroup, panel="Evaluation", record_class=FineTuningJob):
    """Evaluation, and the choice of the weights to keep."""

    eval = option("Examples to evaluate on, instead of --eval-fraction.", "FILE")
    eval_fraction = decimal(
        "Fraction of the examples to hold out; equal texts stay together; 0: none.", high=0.9
    )
    eval_every = number("Steps between evaluations (default: an epoch).")
    patience = number("Stop after N evaluations without a better one.")
    log_every = number("Steps between lines of the log (default: 10; frozen: 100).")


def train(
    job: TrainJobOptions,
    examples: ExampleOptions,
    model: ModelOptions,
    method: MethodOptions,
    steps: StepOptions,
    held_out: HeldOutOptions,
    saving: SavingOptions,
    device: DeviceOptions,
    console: ConsoleOptions,
) -> None:
    """Train a model on examples: texts with labels or scores.

    The fields of the examples decide the task. The result is a folder for --model. After --full,
    transformers loads it too; after --frozen, sentence-transformers does, and transformers would
    load a random head. --resume continues an interrupted run, with the same numbers.

    Fields of each task:

    classify: text[, pair], label; one of several classes.

    multilabel: text[, pair], labels (a list); any of several labels.

    regress: text[, pair], score (a number); a score, such as relevance.

    tag: words, tags (lists), or a CoNLL file; a tag for each word.

    answer: question, context, answer[, start]; spans of contexts, or none for an empty answer.

    embed: anchor, positive[, negative]; vectors that are near where texts belong together.

    embed: text, pair, score with --task embed; vectors whose cosines follow the scores.

    $ bertcli train reviews.jsonl -o sentiment
    $ bertcli train pairs.csv --full --epochs 2 -o relevance
    """
    require_torch("training")
    from bertcli.training.fine_tuning import fine_tune
    from bertcli.training.run import Checkpoints

    fields = {"extra": extra_embeddings(method.extra), "fields": examples.fields}
    training = record(FineTuningJob, job, examples, method, held_out, **fields)
    readers = [Reader(examples.source(path)) for path in (job.file, held_out.eval) if path]
    fine_tune(
        training,
        {**vars(steps), **vars(held_out), **vars(saving), **vars(device)},
        readers,
        lambda: model.folder(MODEL_FILES),
        record(Checkpoints, job, saving),
        record(TrainingDevice, device),
        console,
    )
    for reader in readers:
        console.close(reader)


class PretrainCorpusOptions(OptionGroup, panel=INPUT, record_class=Input):
    """The corpus: files, format and encoding."""

    files: list[str] | None = argument(
        "Files, folders or quoted globs (default, and -: stdin). .gz and .zst are decompressed.",
        "FILE...",
    )
    input = FILES
    input_format = option(
        "auto: by the suffix; stdin is txt, or JSON if it begins with an object or a list. A "
        "record of another format than txt is a document: text with one sentence per line, or a "
        "list of sentences.",
        default="auto",
        annotation=InputFormat,
    )
    text_field = TEXT_FIELD
    join = JOIN
    on_error = ON_ERROR
    encoding = ENCODING
    encoding_errors = ENCODING_ERRORS
    max_record_bytes = MAX_RECORD_BYTES

    def reader(self, id_fields: Collection[str] = ()) -> Reader:
        """Return the reader of the corpus, and of the fields with ids of extra embeddings."""
        return reader_of(
            self,
            files=self.files,
            sentences=True,
            no_pairs=True,
            keep=",".join(dict.fromkeys(id_fields)) or None,
            requested=(*given_field_options([self]), *(("--extra",) if id_fields else ())),
        )


class VocabularyOptions(OptionGroup, record_class=WordPieceOptions):
    """Size and contents of the vocabulary."""

    size = number("Number of tokens, special and unused tokens included.")
    min_frequency = number("Minimum number of occurrences of a token.")
    limit_alphabet = number("Maximum number of distinct characters; Chinese needs more.")
    cased = flag("Keep case and accents, or remove both.", "--cased/--uncased")
    unused = flag(
        "Reserve ids 1 to 99, so that [UNK] is 100, [CLS] 101, [SEP] 102, [MASK] 103.",
        default=True,
    )
    max_length = number("Maximum sequence length of the model (model_max_length).")


def pretrain_vocab(
    corpus: PretrainCorpusOptions,
    options: VocabularyOptions,
    folder: FolderOptions,
    console: ConsoleOptions,
) -> None:
    """Train a WordPiece vocabulary.

    Writes vocab.txt, tokenizer.json and tokenizer_config.json, for bertcli and transformers, and
    manifest.json. The same text gives the same bytes.

    $ bertcli pretrain vocab corpus.txt.gz --size 8000 -o tokenizer
    """
    from bertcli.io.publish import whole_folder
    from bertcli.records.batch import RecordBatch

    reader = corpus.reader()
    settings = record(WordPieceOptions, options)
    with whole_folder(
        folder.output, "pretrain vocab", overwrite=folder.overwrite, inputs=reader.source.paths
    ) as folder_path:
        blocks = console.track(reader.blocks(), reader)
        texts = (text for block in blocks for text in RecordBatch.of(block).strings)
        counts = vocabulary.count_words(texts, cased=settings.cased)
        tokens = vocabulary.train(counts, settings)
        vocabulary.write(tokens, settings, folder_path)
    console.note(f"{len(tokens):,} tokens from {len(counts):,} distinct words")
    console.close(reader)


class InstanceOptions(OptionGroup, panel="Instances", record_class=PrepareOptions):
    """Length, masks and seed of the instances; the defaults are those of the BERT paper."""

    max_length = number("Sequence length, special tokens included.", low=5)
    short_seq_prob = number(
        "Probability of a random, shorter sequence length.", low=0, high=1, metavar="P"
    )
    masked_lm_prob = number(
        "Probability of predicting a token: 80% become [MASK], 10% a random token, 10% stay "
        "unchanged.",
        low=0,
        high=1,
        metavar="P",
    )
    max_predictions = number("Maximum number of tokens to predict per sequence.")
    dupe_factor = number("Passes over the corpus, each with different pairs and masks.")
    extra = extra_option(
        "Store the ids of an extra embedding NAME, which masked words keep: a field with one "
        "per word of a document, a list per sentence, or one number for all"
    )
    whole_word = flag("Mask whole words.")
    seed = option("Random seed: the same seed gives the same bytes.", "N", envvar="BERTCLI_SEED")


def pretrain_prepare(
    corpus: PretrainCorpusOptions,
    model: ModelOptions,
    options: InstanceOptions,
    folder: FolderOptions,
    console: ConsoleOptions,
) -> None:
    """Make training instances from text: masked sentence pairs, half of them random.

    A text file has one sentence per line and a blank line between documents.

    $ bertcli pretrain prepare corpus.txt.gz -m tokenizer -o instances
    $ bertcli pretrain prepare texts.jsonl --extra emotion=emotion_ids -o instances
    """
    from bertcli.training.prepare import PrepareRun, statistics_message

    extra = extra_embeddings(options.extra)
    settings = record(PrepareOptions, options)
    reader = corpus.reader(extra.values())
    tokenizer = model.tokenizer(parse_special=False)
    run = PrepareRun(
        reader,
        tokenizer,
        model.folder().path,
        settings,
        folder.output,
        folder.overwrite,
        extra,
    )
    console.follow(run)
    console.note(statistics_message(run.statistics))
    console.close(reader)


BETA = decimal("Coefficient of AdamW.", high=0.9999)


class JobOptions(OptionGroup, panel=OUTPUT):
    """The instances and the output folder."""

    data: Path = argument("Instances written by bertcli pretrain prepare.", "DIR")
    output = RUN_FOLDER


class StartOptions(OptionGroup, panel=MODEL):
    """The initial weights."""

    config = option(
        "A config.json, or a size: tiny, mini, small, medium, base. A missing vocab_size is "
        "taken from the instances, as are sizes of extra embeddings.",
        "FILE",
    )
    init: Path | None = option(
        "Start from the weights of this model, instead of --config and random weights.", "FOLDER"
    )
    extra = extra_option(
        "Use only these extra embeddings of the instances (default: all that prepare --extra "
        "stored)"
    )

    def __post_init__(self) -> None:
        if (self.config is None) == (self.init is None):
            raise UsageError(
                "give either --config or --init",
                "--config mini starts from random weights, --init FOLDER from those of a model",
            )


class OptimizerOptions(OptionGroup, panel="Training", record_class=TrainingOptions):
    """The optimizer and its schedule."""

    epochs = decimal("Passes over the instances, unless --steps is given.")
    steps = number("Optimizer steps.")
    batch_size = number("Instances per step, over all processes and accumulation steps.")
    learning_rate = decimal("Peak learning rate, after the warm-up.")
    warmup_steps = WARMUP_STEPS
    lr_power = decimal("Power of the polynomial decay to 0; 1 is linear.")
    weight_decay = WEIGHT_DECAY
    adam_beta1 = BETA
    adam_beta2 = BETA
    adam_epsilon = decimal("Coefficient of AdamW.")
    max_grad_norm = MAX_GRAD_NORM
    seed = SEED


class EvaluationOptions(OptionGroup, panel="Evaluation", record_class=TrainingOptions):
    """Evaluation and logging."""

    eval_fraction = decimal(
        "Fraction of the instances, from the end, to hold out for evaluation; 0: none.", high=0.9
    )
    eval_dir: Path | None = option(
        "Instances of other texts for evaluation, instead of --eval-fraction.", "DIR"
    )
    eval_every = number("Steps between evaluations (default: only at the end).")
    log_every = number("Steps between lines of the log.")


def pretrain_run(
    job: JobOptions,
    start: StartOptions,
    optimizer: OptimizerOptions,
    evaluation: EvaluationOptions,
    saving: SavingOptions,
    device: DeviceOptions,
    console: ConsoleOptions,
) -> None:
    """Train a BERT on prepared instances: masked words and next sentences.

    The result is a folder that bertcli and transformers both load. --resume continues an
    interrupted run, with the same numbers. Use torchrun for several processes.

    $ bertcli pretrain run instances --config mini -o bert-mini --epochs 10
    $ torchrun --nproc-per-node 2 -m bertcli pretrain run instances --config base -o mine
    """
    require_torch("training")
    from bertcli.training.options import PretrainingJob
    from bertcli.training.run import Checkpoints, train_task

    options = record(TrainingOptions, optimizer, evaluation, saving, device)
    extra = extra_embeddings(start.extra)
    pretraining = record(PretrainingJob, job, start, evaluation, extra=extra)
    checkpoints = record(Checkpoints, job, saving)
    checkpoints.refuse_inputs(pretraining.data, pretraining.init, pretraining.eval_dir)

    def open_task(ranks: "Ranks") -> "TrainedTask":
        from bertcli.training.pretraining import pretraining_task

        return pretraining_task(pretraining, options, ranks)

    train_task(open_task, checkpoints, record(TrainingDevice, device), console)


class EvaluationInputOptions(OptionGroup, panel=INPUT):
    """The examples; or queries, texts and relevance judgements."""

    file = argument("Examples, with the same fields as for train.", "FILE")
    input = ONE_FILE
    queries = option("Queries with _id and text (BEIR).", "FILE")
    corpus = option("Texts to search, with _id and text.", "FILE")
    qrels = option("Relevance judgements (BEIR or TREC).", "FILE")
    compare = option("Also evaluate another model, and the difference.", "MODEL")
    prompt = PROMPT
    prompt_name = PROMPT_NAME
    json = flag("As --format jsonl.", hidden=True)

    def __post_init__(self) -> None:
        if not (self.file or self.input or self.queries):
            raise UsageError("nothing to evaluate", "give FILE, or --queries, --corpus and --qrels")
        if self.input:
            self.file = given_file(self.file, self.input)


def evaluate(
    sources: EvaluationInputOptions,
    examples: ExampleOptions,
    model: ModelOptions,
    length: TruncationOptions,
    compute: ComputeOptions,
    output: ReportOutput,
    console: ConsoleOptions,
) -> None:
    """Evaluate a model on labelled examples: metrics with 95 % confidence intervals.

    The fields of the examples decide the metrics: accuracy and F1 of labels, correlations of
    scores, F1 of entities and answers. Queries, texts and judgements give those of a search, with
    the model's prompts for queries and documents.

    $ bertcli evaluate test.jsonl -m sentiment
    $ bertcli evaluate test.jsonl -m sentiment --compare other
    $ bertcli evaluate --queries queries.jsonl --corpus corpus.jsonl --qrels test.tsv
    """
    file_format = JSONL if sources.json else output.resolve_format()
    models = [model]
    if sources.compare:
        models.append(model.changed(model=sources.compare))
    files = [path for path in (sources.file, sources.queries, sources.corpus) if path]
    readers = [Reader(examples.source(path)) for path in files]
    from bertcli.embedding.options import EmbedOptions
    from bertcli.evaluation.report import evaluations, interval_warning, report
    from bertcli.tasks.evaluated_model import EvaluatedModel
    from bertcli.tasks.head import Settings

    settings = record(Settings, length, compute)
    options = record(EmbedOptions, sources, length, compute)
    evaluated = [
        EvaluatedModel(options_of_model.folder(MODEL_FILES), settings, options)
        for options_of_model in models
    ]
    inputs: list[str] = []
    for reader in readers:
        inputs += reader.source.paths
    if sources.qrels:
        inputs.append(sources.qrels)
    with output.open(file_format, inputs, *models, view="evaluation_view") as write:
        results = evaluations(evaluated, readers, sources.qrels, examples.task, examples.fields)
        console.warn(interval_warning(results[0], compared=len(models) > 1))
        write([report(*results)])
    for evaluated_model in evaluated:
        console.warn_truncated(evaluated_model.tally, evaluated_model.max_length)
    for reader in readers:
        console.close(reader)
