"""`bertcli decode`: token ids back to text."""

from dataclasses import replace
from typing import Literal

from bertcli.cli.options.common import ConsoleOptions, ModelOptions, TextOutput
from bertcli.cli.options.groups import INPUT, OptionGroup, argument, flag, option
from bertcli.cli.options.inputs import (
    FILES,
    FILES_FROM,
    KEEP_FIELDS,
    MAX_RECORD_BYTES,
    NULL,
    ON_ERROR,
    source_of,
)
from bertcli.records.reader import Reader
from bertcli.records.source import Source
from bertcli.tokenizing.decode import DecodeSettings, decoded


class IdOptions(OptionGroup, panel=INPUT, of=Source):
    """Where ids are read from."""

    ids: list[str] | None = argument("Token ids (default: read --input or stdin).", "ID...")
    input = FILES
    files_from = FILES_FROM
    input_format: Literal[
        "auto", "txt", "jsonl", "csv", "tsv", "npy", "npz", "safetensors", "parquet"
    ] = option(
        "auto: by the suffix; txt: a list of ids, a JSON list or a JSON object per line.",
        default="auto",
    )
    keep_fields = KEEP_FIELDS
    null = NULL
    on_error = ON_ERROR
    max_record_bytes = MAX_RECORD_BYTES

    def source(self) -> Source:
        """Return where to read from."""
        texts = (" ".join(self.ids),) if self.ids else ()
        return source_of(self, texts=texts, ids=True, asked=())  # lists have fields in txt as well


class DecodeOptions(OptionGroup):
    """How ids are decoded."""

    as_: Literal["text", "tokens"] = option("What to convert ids to.", None, "--as", default="text")
    skip_special_tokens = flag("Omit [CLS], [SEP], [PAD], ...")
    clean_up = flag(
        "Remove spaces before punctuation and in contractions (default: as the model "
        "specifies, as in transformers).",
        default=None,
    )


def decode(
    source: IdOptions,
    model: ModelOptions,
    how: DecodeOptions,
    output: TextOutput,
    messages: ConsoleOptions,
) -> None:
    """Turn token ids back into text.

    $ bertcli decode 101 1045 2293 17953 2361 999 102
    $ bertcli tokenize 'I love NLP!' | bertcli decode --skip-special-tokens
    $ bertcli decode -i ids.npy -o texts.txt
    """
    console = messages.console(output)
    form = output.form(piped="txt", terminal="txt")
    tokenizer = model.tokenizer(console)
    decoding = DecodeSettings(how.as_ == "tokens", how.skip_special_tokens, how.clean_up)
    taken, placed = frozenset({"id", decoding.field}), False if form == "txt" else None
    read = replace(source.source(), taken=taken, placed=placed)
    reader = Reader(read, console.warn, console.note)
    records = 0
    with output.open(form, reader.source.inputs, model) as write:
        decoded_rows = decoded(reader, tokenizer, decoding)
        for rows in console.track(decoded_rows, reader):
            write(rows)
            records += len(rows)
        if not records:
            write([decoding.header(reader)])
    console.close(records, reader)
