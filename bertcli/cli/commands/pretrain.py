"""`bertcli pretrain`: a vocabulary, instances, and a model that learns from them."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from bertcli.cli.commands.train import train_task
from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ConsoleOptions, ModelOptions
from bertcli.cli.options.groups import (
    INPUT,
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
from bertcli.cli.options.inputs import (
    Encoding,
    EncodingErrors,
    InputFormat,
    MaxRecordBytes,
    OnError,
    TextField,
    fields_asked,
    reader_of,
    source_of,
)
from bertcli.cli.options.training import (
    DeviceOptions,
    FolderOptions,
    MaxGradNorm,
    SavingOptions,
    Seed,
    WarmupSteps,
    WeightDecay,
    extra_fields,
    extra_option,
    run_folder,
)
from bertcli.errors import UsageError
from bertcli.files.streams import LARGEST_RECORD
from bertcli.records.reader import Reader

if TYPE_CHECKING:
    from bertcli.training.loop import Ranks
    from bertcli.training.pretraining import PretrainingTask


class PretrainCorpusOptions(OptionGroup):
    """The corpus: files, format and encoding."""

    PANEL: ClassVar = INPUT

    corpus: Annotated[
        list[str] | None,
        argument(
            "Files, folders or quoted globs (default, and -: stdin). .gz and .zst are "
            "decompressed.",
            "CORPUS...",
        ),
    ] = None
    input_format: Annotated[
        InputFormat,
        option(
            "auto: by the suffix; stdin is txt, or JSONL if it begins with an object. A record of "
            "another format than txt is a document: text with one sentence per line, or a list of "
            "sentences."
        ),
    ] = "auto"
    text_field: TextField = None
    on_error: OnError = "fail"
    encoding: Encoding = "utf-8"
    encoding_errors: EncodingErrors = "strict"
    max_record_bytes: MaxRecordBytes = LARGEST_RECORD

    def reader(self, console: Console, extra: Collection[str] = ()) -> Reader:
        """Return the reader of the corpus, and of fields with ids of ``extra`` embeddings."""
        source = source_of(
            self,
            named=self.corpus,
            sentences=True,
            single=True,
            keep=",".join(dict.fromkeys(extra)) or None,
            flags=dict.fromkeys(extra, "--extra"),
            asked=(*fields_asked(vars(self)), *(("--extra",) if extra else ())),
        )
        return reader_of(source, console)


class VocabularyOptions(OptionGroup):
    """Size and contents of the vocabulary."""

    size: Annotated[int, number("Number of tokens, special and unused tokens included.")] = 30522
    min_frequency: Annotated[int, number("Minimum number of occurrences of a token.")] = 2
    limit_alphabet: Annotated[
        int,
        number("Maximum number of distinct characters; Chinese needs more."),
    ] = 1000
    cased: Annotated[bool, flag("--cased/--uncased", "Keep case and accents, or remove both.")] = (
        False
    )
    unused: Annotated[
        bool,
        flag(
            "--unused/--no-unused",
            "Reserve ids 1 to 99, so that [UNK] is 100, [CLS] 101, [SEP] 102, [MASK] 103.",
        ),
    ] = True
    max_length: Annotated[
        int, number("Maximum sequence length of the model (model_max_length).")
    ] = 512


def pretrain_vocab(
    corpus: PretrainCorpusOptions,
    options: VocabularyOptions,
    folder: FolderOptions,
    messages: ConsoleOptions,
) -> None:
    """Train a WordPiece vocabulary.

    Writes vocab.txt, tokenizer.json and tokenizer_config.json, for bertcli and transformers. The
    same text gives the same bytes.

    $ bertcli pretrain vocab corpus.txt.gz --size 8000 -o tokenizer
    """
    from bertcli.files.atomic import whole_folder
    from bertcli.records.records import TextBlock
    from bertcli.training.vocabulary import OURS, WordCounts, WordPieceOptions, train, write

    console = messages.console()
    reader = corpus.reader(console)
    words = WordCounts(record(WordPieceOptions, options))
    reading = reader.source.paths
    with whole_folder(folder.output, OURS, overwrite=folder.overwrite, inputs=reading) as place:
        blocks = console.track(reader.blocks(), reader)
        words.add(text for block in blocks for text in TextBlock.of(block).strings)
        tokens = train(words)
        write(tokens, words.options, place)
    console.note(words.described(tokens))
    console.close(len(tokens), reader)


class InstanceOptions(OptionGroup):
    """How instances are made; the defaults are those of the BERT paper."""

    PANEL: ClassVar = "Instances"

    max_length: Annotated[int, number("Sequence length, special tokens included.", low=5)] = 128
    short_seq_prob: Annotated[
        float,
        number("Probability of a random, shorter sequence length.", low=0, high=1, metavar="P"),
    ] = 0.1
    masked_lm_prob: Annotated[
        float,
        number(
            "Probability of predicting a token: 80% become [MASK], 10% a random token, 10% stay "
            "unchanged.",
            low=0,
            high=1,
            metavar="P",
        ),
    ] = 0.15
    max_predictions: Annotated[int, number("Maximum number of tokens to predict per sequence.")] = (
        20
    )
    dupe_factor: Annotated[
        int, number("Passes over the corpus, each with different pairs and masks.")
    ] = 5
    extra: Annotated[
        list[str] | None,
        extra_option(
            "Store the ids of an extra embedding NAME, which masked words keep: a field with one "
            "per word of a document, a list per sentence, or one number for all"
        ),
    ] = None
    whole_word: Annotated[bool, flag("--whole-word", "Mask whole words.")] = False
    seed: Annotated[
        int, option("Random seed: the same seed gives the same bytes.", "N", envvar="BERTCLI_SEED")
    ] = 0


class ShardOptions(OptionGroup):
    """How the instances are stored."""

    PANEL: ClassVar = OUTPUT

    shard_size: Annotated[int, number("Instances per file.")] = 32768


def pretrain_prepare(
    corpus: PretrainCorpusOptions,
    model: ModelOptions,
    options: InstanceOptions,
    shards: ShardOptions,
    folder: FolderOptions,
    messages: ConsoleOptions,
) -> None:
    """Make training instances from text: masked sentence pairs, half of them random.

    A text file has one sentence per line and a blank line between documents.

    $ bertcli pretrain prepare corpus.txt.gz -m tokenizer -o instances
    $ bertcli pretrain prepare texts.jsonl --extra emotion=emotion_ids -o instances
    """
    from bertcli.training.instances import PrepareOptions
    from bertcli.training.prepare import PrepareRun, described, doubts

    console = messages.console()
    extra, settings = extra_fields(options.extra), record(PrepareOptions, options)
    reader = corpus.reader(console, extra.values())
    tokenizer = model.tokenizer(console, parse_special=False)
    run = PrepareRun(
        reader,
        tokenizer,
        model.folder().path,
        settings,
        folder.output,
        folder.overwrite,
        shards.shard_size,
        extra,
    )
    console.watch(run)
    for line in described(run.statistics):
        console.note(line)
    for name, size in run.sizes.items():
        console.note(f"extra embedding {name}: ids 0 to {size - 1}, from the field {extra[name]}")
    console.warn(doubts(run.statistics))
    console.close(run.statistics["instances"], reader)


Beta = Annotated[float, decimal("Coefficient of AdamW.", high=0.9999)]


class JobOptions(OptionGroup):
    """The instances and the output folder."""

    PANEL: ClassVar = OUTPUT

    data: Annotated[Path, argument("Instances written by bertcli pretrain prepare.", "DIR")]
    output: Annotated[Path, run_folder("CKPT")]


class StartOptions(OptionGroup):
    """The initial weights."""

    PANEL: ClassVar = MODEL

    config: Annotated[
        str | None,
        option(
            "A config.json, or a size: tiny, mini, small, medium, base. A missing vocab_size is "
            "taken from the instances, as are sizes of extra embeddings.",
            "FILE",
        ),
    ] = None
    init: Annotated[
        Path | None,
        option(
            "Start from the weights of this model, instead of --config and random weights.",
            "FOLDER",
        ),
    ] = None
    extra: Annotated[
        list[str] | None,
        extra_option(
            "Use only these extra embeddings of the instances (default: all that prepare --extra "
            "stored)"
        ),
    ] = None

    def __post_init__(self) -> None:
        extra_fields(self.extra)
        if (self.config is None) == (self.init is None):
            raise UsageError(
                "give either --config or --init",
                "--config mini starts from random weights, --init FOLDER from those of a model",
            )


class OptimizerOptions(OptionGroup):
    """The optimizer and its schedule."""

    PANEL: ClassVar = "Training"

    epochs: Annotated[float, decimal("Passes over the instances, unless --steps is given.")] = 3.0
    steps: Annotated[int | None, number("Optimizer steps.")] = None
    batch_size: Annotated[
        int, number("Instances per step, over all processes and accumulation steps.")
    ] = 32
    learning_rate: Annotated[float, decimal("Peak learning rate, after the warm-up.")] = 1e-4
    warmup_steps: WarmupSteps = None
    lr_power: Annotated[float, decimal("Power of the polynomial decay to 0; 1 is linear.")] = 1.0
    weight_decay: WeightDecay = 0.01
    adam_beta1: Beta = 0.9
    adam_beta2: Beta = 0.999
    adam_epsilon: Annotated[float, decimal("Coefficient of AdamW.")] = 1e-6
    max_grad_norm: MaxGradNorm = 1.0
    seed: Seed = 0


class EvaluationOptions(OptionGroup):
    """Evaluation and logging."""

    PANEL: ClassVar = "Evaluation"

    eval_fraction: Annotated[
        float,
        decimal(
            "Fraction of the instances, from the end, to hold out for evaluation; 0: none.",
            high=0.9,
        ),
    ] = 0.05
    eval_dir: Annotated[
        Path | None,
        option("Instances of other texts for evaluation, instead of --eval-fraction.", "DIR"),
    ] = None
    eval_every: Annotated[
        int | None, number("Steps between evaluations (default: only at the end).")
    ] = None
    log_every: Annotated[int, number("Steps between lines of the log.")] = 10


def pretrain_run(
    job: JobOptions,
    start: StartOptions,
    optimizer: OptimizerOptions,
    evaluation: EvaluationOptions,
    saving: SavingOptions,
    where: DeviceOptions,
    messages: ConsoleOptions,
) -> None:
    """Train a BERT on prepared instances: masked words and next sentences.

    The result is a folder that bertcli and transformers both load. --resume continues an
    interrupted run, with the same numbers. Use torchrun for several processes.

    $ bertcli pretrain run instances --config mini -o bert-mini --epochs 10
    $ torchrun --nproc-per-node 2 -m bertcli pretrain run instances --config base -o mine
    """
    console = messages.console()
    from bertcli.training.options import PretrainingJob, RunFolder, TrainingOptions

    options = record(TrainingOptions, optimizer, evaluation, saving, where, dtype=where.precision)
    extra = extra_fields(start.extra)
    pretraining = record(PretrainingJob, job, start, evaluation, extra=extra)
    place = record(RunFolder, job, saving)
    place.refuse_inputs(pretraining.data, pretraining.init, pretraining.eval_dir)

    def opened(ranks: "Ranks", console: Console) -> "PretrainingTask":
        from bertcli.training.pretraining import PretrainingTask

        return PretrainingTask.open(pretraining, options, ranks)

    train_task(opened, place, saving.keep, where, console)
