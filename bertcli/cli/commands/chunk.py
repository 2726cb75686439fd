"""`bertcli chunk`: split texts into chunks of at most N tokens."""

from bertcli.cli.options.common import (
    AT,
    JOIN,
    OVERLAP,
    PARSE_SPECIAL,
    SPECIAL_TOKENS,
    TEXT_FIELD,
    TEXTS,
    ConsoleOptions,
    LineOutput,
    ModelOptions,
    TaskFileOptions,
    max_length_option,
    reader_of,
)
from bertcli.cli.options.groups import INPUT, LAYOUT, OptionGroup, flag, record
from bertcli.errors import UsageError
from bertcli.formats.registry import ENCODED_ROWS, TXT
from bertcli.tokenizing.chunks import CHUNK_COLUMNS, Chunker, ChunkRun, ChunkSettings


class ChunkTextOptions(OptionGroup, panel=INPUT):
    """The texts to split."""

    texts: list[str] | None = TEXTS
    text_field = TEXT_FIELD
    join = JOIN


class ChunkOptions(OptionGroup, panel=LAYOUT, record_class=ChunkSettings):
    """Length and boundaries of chunks."""

    max_length = max_length_option("Maximum tokens of a chunk (default: the model's limit).")
    overlap = OVERLAP
    at = AT
    first = flag("Write only the first chunk of each text, which truncates it.")
    special_tokens = SPECIAL_TOKENS
    parse_special = PARSE_SPECIAL


def chunk(
    texts: ChunkTextOptions,
    files: TaskFileOptions,
    model: ModelOptions,
    chunks: ChunkOptions,
    output: LineOutput,
    console: ConsoleOptions,
) -> None:
    """Split texts into chunks of at most N tokens, in their original characters.

    $ bertcli chunk -i docs.jsonl --max-length 256 --overlap 32 --at sentence
    $ bertcli chunk --first -f txt < lines.txt

    White space belongs to the chunk before it: without --overlap, the chunks of a text concatenated
    give the text. -f txt writes only the chunks, one per line, or NUL-terminated with -0.
    """
    console.beside_output = output.on_terminal
    file_format = output.resolve_format()
    if file_format == TXT and files.keep_fields:
        raise UsageError("txt holds the chunks alone, not the fields of --keep-fields")
    reserved = frozenset(CHUNK_COLUMNS) if file_format != TXT else frozenset()
    reader = reader_of(texts, files, no_pairs=True, reserved=reserved)
    tokenizer = model.tokenizer(parse_special=chunks.parse_special)
    chunker = Chunker(tokenizer, record(ChunkSettings, chunks))
    if tokenizer.limit is not None and chunker.limit > tokenizer.limit:
        console.warn(
            f"--max-length {chunker.limit} is more than the model's limit of {tokenizer.limit} "
            "tokens"
        )
    run = ChunkRun(reader, chunker, file_format)
    writer = ENCODED_ROWS if file_format == TXT else file_format
    with output.open(writer, reader.source.inputs, model, run=run, uses_weights=False) as write:
        for rows in console.track(run):
            write(rows)
    console.warn_special_tokens(run.tally)
    console.close(reader)
