"""`bertcli pretrain vocab`: a WordPiece vocabulary from text."""

from typing import Annotated

from bertcli.cli.options.common import ConsoleOptions
from bertcli.cli.options.groups import OptionGroup, flag, number, record
from bertcli.cli.options.pretrain import FolderOptions, PretrainCorpusOptions


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
        blocks = console.track(reader.blocks(), reader, beside_output=False)
        words.add(text for block in blocks for text in TextBlock.of(block).strings)
        tokens = train(words)
        write(tokens, words.options, place)
    console.note(words.described(tokens))
    console.close(len(tokens), reader)
