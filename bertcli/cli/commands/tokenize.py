"""`bertcli tokenize`: texts to token ids and other fields; `bertcli decode`: ids back to text."""

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from bertcli.cli.commands.on_ray import TokenizeEngineOptions, on_ray
from bertcli.cli.options.common import (
    FILES,
    FILES_FROM,
    INFER_TYPES,
    KEEP_FIELDS,
    MAX_RECORD_BYTES,
    NULL,
    ON_ERROR,
    PARSE_SPECIAL,
    SPECIAL_TOKENS,
    ConsoleOptions,
    InputOptions,
    ModelOptions,
    OutputOptions,
    TextOutput,
    max_length_option,
    one_of,
    refuse_file_as_text,
    source_of,
)
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
from bertcli.errors import LOG, UsageError, counted
from bertcli.formats.registry import ARRAYS, FORMATS, JSON, JSONL, ROWS, TXT, Holds, names_of
from bertcli.formats.tables import TableHeader
from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.records.record import row_of
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.run import DecodeRun, TokenCounts, TokenizeRun, TokenOutput
from bertcli.tokenizing.statistics import CorpusStats, file_rows
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.tokenizing.truncation import layout_strategies

if TYPE_CHECKING:
    from bertcli.ray.run import Pool, ShardJob


class FieldOptions(OptionGroup, panel="Fields", record_class=Layout):
    """The fields of a record."""

    token_type_ids = flag("0 for the text, 1 for its pair.", default=True)
    attention_mask = flag("1 for tokens, 0 for padding.", default=True)
    tokens = flag("The tokens.")
    offset_mapping = flag("Start and end of each token in its text.", "--offsets")
    offset_unit = option("Unit of the offsets.")
    word_ids = flag("The word that each token belongs to.")
    sequence_ids = flag("0 for the text, 1 for its pair.")
    special_tokens_mask = flag("1 for [CLS], [SEP] and [PAD].")
    length = flag("The number of tokens.")
    text = flag("The text and its pair.")
    overflowing = flag("One record per window of a long text.")
    ragged = flag("npz and safetensors: one flat input_ids for all texts, and offsets.")

    def columns(self) -> tuple[str, ...]:
        """Return the columns that are written."""
        names = (
            "token_type_ids",
            "attention_mask",
            "special_tokens_mask",
            "tokens",
            "offset_mapping",
            "word_ids",
            "sequence_ids",
        )
        return ("input_ids", *(name for name in names if getattr(self, name)))

    def row_fields(self, layout: Layout) -> tuple[str, ...]:
        """Return the fields that are written beside the columns: one value per text."""
        chosen = {
            "length": self.length,
            "text": self.text,
            "pair": self.text,
            "overflow_to_sample_mapping": self.overflowing,
            "truncated": layout.truncation != "do_not_truncate",
        }
        return tuple(name for name, is_chosen in chosen.items() if is_chosen)


class LayoutOptions(OptionGroup, panel=LAYOUT, record_class=Layout):
    """Truncation, padding and special tokens."""

    max_length = max_length_option(
        "Truncate or pad to N tokens; alone, it truncates. Default: the model's limit."
    )
    truncation: (
        Literal["longest_first", "only_first", "only_second", "do_not_truncate", "true", "false"]
        | None
    ) = option(
        "Truncate longer texts (default: do not). true is longest_first, false do_not_truncate.",
        default=None,
        envvar="BERTCLI_TRUNCATION",
    )
    truncation_side = option("Side to truncate (default: right).")
    padding: Literal["longest", "max_length", "do_not_pad", "true", "false"] | None = option(
        "Pad shorter texts (default: do not). true is longest, false do_not_pad.",
        default=None,
        envvar="BERTCLI_PADDING",
    )
    padding_side = option("Side to pad (default: right).")
    pad_to_multiple_of = number("Pad to a multiple of N.")
    stride = number("Tokens shared by neighbouring windows (--overflowing).", low=0)
    special_tokens = SPECIAL_TOKENS
    parse_special = PARSE_SPECIAL
    window = number("Number of records that --padding longest pads together.", default=10_000)

    def layout(self, fields: FieldOptions, columns: tuple[str, ...]) -> Layout:
        """Return the layout of these options."""
        padding, truncation = layout_strategies(
            self.padding, self.truncation, self.max_length, overflowing=fields.overflowing
        )
        return record(Layout, self, fields, columns=columns, padding=padding, truncation=truncation)


class ModeOptions(OptionGroup, panel="Other output"):
    """Output other than token ids."""

    from_tokens = flag("The arguments are tokens; print their ids.")
    count = flag("Print only the number of tokens, after any id.")
    stats = flag(
        "Print one summary of all texts: lengths, unknown words, texts that would be truncated."
    )
    per_file = flag("Results per file, and the total (--count, --stats).")

    @property
    def is_summary(self) -> bool:
        """True if nothing is written before the end of the input."""
        return bool(self.stats or self.per_file)


def tokenize(
    source: InputOptions,
    model: ModelOptions,
    layout: LayoutOptions,
    fields: FieldOptions,
    mode: ModeOptions,
    output: OutputOptions,
    engine: TokenizeEngineOptions,
    console: ConsoleOptions,
) -> None:
    """Turn texts into token ids.

    $ bertcli tokenize 'I love NLP!'
    $ cat texts.txt | bertcli tokenize --max-length 128 -o ids.jsonl.gz
    $ bertcli tokenize --count -i 'docs/**/*.md'
    """
    console.beside_output = output.on_terminal and not mode.is_summary
    if engine.engine == "ray":
        _tokenize_on_ray(source, model, layout, fields, output, engine, console)
        return
    file_format = _resolve_format(source, mode, output, fields)
    tokenizer = model.tokenizer(parse_special=layout.parse_special)
    if mode.from_tokens:
        console.close(_write_token_ids(source, fields, output, file_format, model, tokenizer))
        return
    token_layout = _token_layout(layout, fields, mode, file_format)
    tokenizer.truncated_length(token_layout)  # raises for invalid lengths before anything is read
    if token_layout.padding == "max_length":
        tokenizer.max_length(token_layout)
    if token_layout.offset_unit != "char" and "offset_mapping" not in token_layout.columns:
        console.warn("--offset-unit has no effect without --offsets")
    row_fields = fields.row_fields(token_layout)
    if mode.count:
        row_fields = ("text", "length") if file_format == "table" else ("length",)
    task = TokenOutput(token_layout, row_fields, file_format, fields.ragged)
    reserved = frozenset() if mode.stats or file_format == "table" else task.fields
    reader = source.reader(reserved=reserved, with_location=False if file_format == TXT else None)
    run = task.run(reader, tokenizer, layout.window)
    windows: Any = console.track(run)
    if mode.is_summary:
        _write_summary(run, windows, mode, output, model, file_format, layout.max_length)
    else:
        view = "rows_view"
        view_arguments: tuple[Any, ...] = ()
        if not mode.count:
            view = "token_views"
            view_arguments = (tokenizer,)
        with output.open(
            task.writer,
            reader.source.inputs,
            model,
            view=view,
            view_arguments=view_arguments,
            run=run,
            uses_weights=False,
        ) as write:
            task.write(run, windows, write, as_rows=output.resume)
    _report(run, token_layout, console)


def _tokenize_on_ray(
    source: InputOptions,
    model: ModelOptions,
    layout: LayoutOptions,
    fields: FieldOptions,
    output: OutputOptions,
    engine: TokenizeEngineOptions,
    console: ConsoleOptions,
) -> None:
    """Write a folder of files on the workers of a Ray cluster."""
    source.refuse_kept_fields(output.format)

    def make_job(find_model: Any, source: "Input", file_format: str, pool: "Pool") -> "ShardJob":
        from bertcli.ray.run import TokenizeJob

        token_layout = layout.layout(fields, fields.columns())
        task = TokenOutput(token_layout, fields.row_fields(token_layout), file_format)
        return record(
            TokenizeJob,
            layout,
            output,
            model=find_model,
            source=source.changed(reserved=task.fields),
            file_format=file_format,
            layout=task.layout,
            extra=task.other_fields,
        )

    on_ray(make_job, source, model, output, engine, console)


def _token_layout(
    layout: LayoutOptions, fields: FieldOptions, mode: ModeOptions, file_format: str
) -> Layout:
    """Return the layout of the tokens, with the columns that the output needs."""
    columns = () if mode.stats or mode.count else fields.columns()
    if mode.stats:  # without truncation: --max-length only sets the limit that is reported
        return Layout(columns, special_tokens=layout.special_tokens)
    if columns and file_format == "table":
        from bertcli.cli.display.tables import TOKEN_COLUMNS

        columns = TOKEN_COLUMNS
    elif fields.ragged:  # without padding, all values would be 1
        columns = tuple(name for name in columns if name != "attention_mask")
    return layout.layout(fields, columns)


def _report(run: TokenizeRun, layout: Layout, console: ConsoleOptions) -> None:
    """Report warnings and counts of a run that has been read."""
    tally = run.tally
    limit = run.tokenizer.limit
    if layout.truncation == "do_not_truncate" and tally.too_long:
        console.warn(
            f"{tally.too_long:,} of {tally.records:,} texts longer than the model's limit of "
            f"{limit} tokens (longest: {tally.longest}); --truncation true truncates them"
        )
    console.warn_truncated(tally, run.tokenizer.truncated_length(layout))
    console.warn_special_tokens(tally)
    if run.window and tally.records > run.window:
        console.note(
            f"--padding longest was applied to {counted(run.window, 'record')} at a time (--window)"
        )
    console.close(run.reader)


def _resolve_format(
    source: InputOptions, mode: ModeOptions, output: OutputOptions, fields: FieldOptions
) -> str:
    """Return the format to write. Raises UsageError for one that cannot hold the fields."""
    if mode.per_file:
        return output.resolve_format(("table", *ROWS) if mode.count else ("table", JSONL))
    if mode.count:
        return output.resolve_format((TXT, "table", *ROWS), default=TXT)
    if mode.stats:
        return output.resolve_format(("table", JSONL))
    file_format = output.resolve_format((*[TXT] * mode.from_tokens, "table", *ROWS, *ARRAYS))
    source.refuse_kept_fields(file_format)
    if mode.from_tokens:
        return file_format
    has_word_columns = any(
        (fields.tokens, fields.offset_mapping, fields.word_ids, fields.sequence_ids)
    )
    if fields.ragged and not (file_format in FORMATS and FORMATS[file_format].ragged_writer):
        raise UsageError(
            f"--ragged requires npz or safetensors, not {file_format}",
            "give -o FILE.npz, for example",
        )
    if file_format in ARRAYS and has_word_columns:
        raise UsageError(
            f"{file_format} cannot hold tokens, offsets, word ids or sequence ids", "use -f parquet"
        )
    return file_format


def _write_summary(
    run: TokenizeRun,
    batches: Any,
    mode: ModeOptions,
    output: OutputOptions,
    model: ModelOptions,
    file_format: str,
    max_length: int | None,
) -> None:
    """Write counts or statistics of all texts; with --per-file, also those of each file."""
    counter = partial(CorpusStats, run.tokenizer, max_length) if mode.stats else TokenCounts
    paths = run.reader.source.paths

    def rows() -> list[dict[str, Any]]:
        if mode.per_file:
            return file_rows(counter, paths, batches)
        total = counter()
        for batch in batches:
            total.add(batch)
        return [total.summary()]

    if file_format == "table":
        from bertcli.cli.display.tables import counts_table, show, stats_view

        if mode.per_file:
            show(counts_table(rows()))
        else:
            show(*stats_view(*rows()))
        return
    inputs = run.reader.source.inputs
    if file_format == JSONL and not mode.per_file:  # a single row
        file_format = JSON
    # Opened before the texts are read, so that an invalid output is an error at once.
    with output.open(file_format, inputs, model, uses_weights=False) as write:
        write(rows())


def _write_token_ids(
    source: InputOptions,
    fields: FieldOptions,
    output: OutputOptions,
    file_format: str,
    model: ModelOptions,
    tokenizer: Tokenizer,
) -> Reader:
    """Write the ids of the tokens in the arguments or in each line. Return their reader."""
    columns = ("input_ids", "tokens") if fields.tokens else ("input_ids",)
    texts = (source.texts,) if source.texts else ()
    reader = source.reader(texts=texts, pre_split=True, reserved=frozenset(("id", *columns)))
    with output.open(file_format, reader.source.inputs, model, uses_weights=False) as write:
        for record in reader:
            ids, unknown = tokenizer.ids_of(record.text)
            if unknown:
                LOG.warn(f"not in the vocabulary, replaced by [UNK]: {' '.join(unknown[:10])}")
            if file_format == "table":
                pairs = zip(record.text, ids, strict=True)
                write([{"token": token, "id": index} for token, index in pairs])
                continue
            tokens = {"tokens": tokenizer.convert_ids_to_tokens(ids)} if fields.tokens else {}
            write([row_of(record, {"input_ids": ids} | tokens)])
        if not reader.records:
            write([TableHeader({name: [] for name in columns})])
    return reader


class IdOptions(OptionGroup, panel=INPUT, record_class=Input):
    """Where ids are read from."""

    ids: list[str] | None = argument("Token ids (default: read --input or stdin).", "ID...")
    input = FILES
    files_from = FILES_FROM
    input_format = option(
        "auto: by the suffix; txt: a list of ids, a JSON list or a JSON object per line.",
        default="auto",
        annotation=one_of("auto", TXT, *names_of(Holds.ROWS | Holds.ARRAYS, for_input=True)),
    )
    keep_fields = KEEP_FIELDS
    infer_types = INFER_TYPES
    null = NULL
    on_error = ON_ERROR
    max_record_bytes = MAX_RECORD_BYTES


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
    decoding: DecodeOptions,
    output: TextOutput,
    console: ConsoleOptions,
) -> None:
    """Turn token ids back into text.

    $ bertcli decode 101 1045 2293 17953 2361 999 102
    $ bertcli tokenize 'I love NLP!' | bertcli decode --skip-special-tokens
    $ bertcli decode -i ids.npy -o texts.txt
    """
    console.beside_output = output.on_terminal
    file_format = output.resolve_format(default=TXT)
    tokenizer = model.tokenizer()
    column = decoding.as_
    refuse_file_as_text(source.ids or ())
    reader = Reader(
        source_of(
            source,
            texts=(" ".join(source.ids),) if source.ids else (),
            ids=True,
            reserved=frozenset({"id", column}),
            with_location=False if file_format == TXT else None,
            requested=(),  # lists have fields in txt as well
        )
    )
    run = DecodeRun(reader, tokenizer, column, decoding.skip_special_tokens, decoding.clean_up)
    with output.open(
        file_format, reader.source.inputs, model, run=run, uses_weights=False
    ) as write:
        for rows in console.track(run):
            write(rows)
        if not run.tally.records:
            write([reader.header({column: [] if column == "tokens" else ""})])
    console.close(reader)
