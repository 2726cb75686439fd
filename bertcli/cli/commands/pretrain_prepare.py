"""`bertcli pretrain prepare`: instances of masked words and next sentences, from text."""

from typing import Annotated, ClassVar, Literal

from bertcli.cli.options.common import ConsoleOptions, ModelOptions, allowed_form
from bertcli.cli.options.groups import OUTPUT, OptionGroup, flag, number, option, record
from bertcli.cli.options.pretrain import FolderOptions, PretrainCorpusOptions
from bertcli.cli.options.training import extra_fields, extra_option


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
    format: Annotated[
        Literal["safetensors", "parquet"], option("Format of the files.", None, "--format", "-f")
    ] = "safetensors"


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
    from bertcli.training.prepare import InstanceTokenizer, PrepareRun

    console = messages.console()
    allowed_form(shards.format, (shards.format,))
    extra, settings = extra_fields(options.extra), record(PrepareOptions, options)
    reader = corpus.reader(console, extra.values())
    tokenizer = model.tokenizer(console, parse_special=False)
    tokens = InstanceTokenizer.of(tokenizer, model.folder().path, settings)
    run = PrepareRun(
        reader,
        tokens,
        settings,
        folder.output,
        folder.overwrite,
        shards.shard_size,
        shards.format,
        extra,
    )
    console.watch(run)
    for line in run.statistics.lines():
        console.note(line)
    for name, size in run.sizes.items():
        console.note(f"extra embedding {name}: ids 0 to {size - 1}, from the field {extra[name]}")
    for warning in run.statistics.warnings():
        console.warn(warning)
    console.close(run.statistics.lengths.total(), reader)
