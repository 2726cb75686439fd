"""`bertcli pretrain`: a vocabulary, instances, and a model that learns from them."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

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
    ENCODING,
    ENCODING_ERRORS,
    MAX_RECORD_BYTES,
    ON_ERROR,
    TEXT_FIELD,
    InputFormat,
    fields_asked,
    reader_of,
    source_of,
)
from bertcli.cli.options.training import (
    MAX_GRAD_NORM,
    SEED,
    WARMUP_STEPS,
    WEIGHT_DECAY,
    DeviceOptions,
    FolderOptions,
    SavingOptions,
    extra_fields,
    extra_option,
    run_folder,
)
from bertcli.errors import UsageError
from bertcli.records.reader import Reader
from bertcli.records.source import Source
from bertcli.training.options import PrepareOptions, TrainingOptions
from bertcli.training.vocabulary import OURS, WordCounts, WordPieceOptions, train, write

if TYPE_CHECKING:
    from bertcli.training.loop import Ranks
    from bertcli.training.pretraining import PretrainingTask


class PretrainCorpusOptions(OptionGroup, panel=INPUT, of=Source):
    """The corpus: files, format and encoding."""

    corpus: list[str] | None = argument(
        "Files, folders or quoted globs (default, and -: stdin). .gz and .zst are decompressed.",
        "CORPUS...",
    )
    input_format = option(
        "auto: by the suffix; stdin is txt, or JSONL if it begins with an object. A record of "
        "another format than txt is a document: text with one sentence per line, or a list of "
        "sentences.",
        default="auto",
        kind=InputFormat,
    )
    text_field = TEXT_FIELD
    on_error = ON_ERROR
    encoding = ENCODING
    encoding_errors = ENCODING_ERRORS
    max_record_bytes = MAX_RECORD_BYTES

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


class VocabularyOptions(OptionGroup, of=WordPieceOptions):
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
    messages: ConsoleOptions,
) -> None:
    """Train a WordPiece vocabulary.

    Writes vocab.txt, tokenizer.json and tokenizer_config.json, for bertcli and transformers. The
    same text gives the same bytes.

    $ bertcli pretrain vocab corpus.txt.gz --size 8000 -o tokenizer
    """
    from bertcli.files.atomic import whole_folder
    from bertcli.records.records import TextBlock

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


class InstanceOptions(OptionGroup, panel="Instances", of=PrepareOptions):
    """How instances are made; the defaults are those of the BERT paper."""

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


class ShardOptions(OptionGroup, panel=OUTPUT):
    """How the instances are stored."""

    shard_size = number("Instances per file.", default=32768)


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


BETA = decimal("Coefficient of AdamW.", high=0.9999)


class JobOptions(OptionGroup, panel=OUTPUT):
    """The instances and the output folder."""

    data: Path = argument("Instances written by bertcli pretrain prepare.", "DIR")
    output = run_folder("CKPT")


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
        extra_fields(self.extra)
        if (self.config is None) == (self.init is None):
            raise UsageError(
                "give either --config or --init",
                "--config mini starts from random weights, --init FOLDER from those of a model",
            )


class OptimizerOptions(OptionGroup, panel="Training", of=TrainingOptions):
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


class EvaluationOptions(OptionGroup, panel="Evaluation", of=TrainingOptions):
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
    from bertcli.training.options import PretrainingJob, RunFolder

    options = record(TrainingOptions, optimizer, evaluation, saving, where, dtype=where.precision)
    extra = extra_fields(start.extra)
    pretraining = record(PretrainingJob, job, start, evaluation, extra=extra)
    place = record(RunFolder, job, saving)
    place.refuse_inputs(pretraining.data, pretraining.init, pretraining.eval_dir)

    def opened(ranks: "Ranks", console: Console) -> "PretrainingTask":
        from bertcli.training.pretraining import PretrainingTask

        return PretrainingTask.open(pretraining, options, ranks)

    train_task(opened, place, saving.keep, where, console)
