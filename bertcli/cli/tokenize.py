"""`bertcli tokenize`: texts to token ids, and all else that a tokenizer knows of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from bertcli.cli.console import Console
from bertcli.cli.engine import on_ray
from bertcli.cli.engine_options import TokenizeEngineOptions
from bertcli.cli.inputs import InputOptions
from bertcli.cli.messages import special_tokens, too_long, truncated
from bertcli.cli.options import ROWS, ConsoleOptions, ModelOptions, OutputOptions
from bertcli.cli.tokenize_options import FieldOptions, LayoutOptions, ModeOptions
from bertcli.encoding import Layout
from bertcli.errors import UsageError
from bertcli.records import Record
from bertcli.scribe import Part, Task, transcribe
from bertcli.tables import Header, Made
from bertcli.tokenizer import Tokenizer
from bertcli.tokenizing import WINDOW, Run, count_row, fields_written, header, ids_row, row

if TYPE_CHECKING:
    from bertcli.engines.cluster import Pool
    from bertcli.engines.jobs import Job, Model
    from bertcli.records import Source

TABULAR = ("csv", "tsv", "parquet")
ARRAYS = ("npy", "npz", "safetensors")
LINES = ("jsonl", "txt")


def tokenize(
    source: InputOptions,
    model: ModelOptions,
    layout: LayoutOptions,
    fields: FieldOptions,
    mode: ModeOptions,
    output: OutputOptions,
    engine: TokenizeEngineOptions,
    messages: ConsoleOptions,
) -> None:
    """Turn texts into token ids.

    [bold]bertcli tokenize "I love NLP!"[/bold]

    [bold]cat texts.txt | bertcli tokenize --max-length 128 -o ids.jsonl.gz[/bold]
    """
    console = messages.console()
    if engine.engine == "ray":
        make = partial(_job, layout, fields, mode, output.overwrite)
        on_ray(make, source, model, output, engine, console)
        return
    engine.refuse_ray_options()
    tokenizer = model.tokenizer(console, parse_special=layout.parse_special)
    if mode.from_tokens:
        _ids_of_tokens(source, fields, output, tokenizer, console)
        return
    form = _form(mode, output, fields)
    shape = _layout(layout, fields, mode, _columns(mode, fields, form))
    _check(shape, tokenizer, console)
    together = shape.padding == "longest"
    size = layout.window if together else WINDOW
    reader = source.reader(console, taken=_taken(shape, fields, mode, form))
    run = Run(reader, tokenizer, shape, size, full=together)
    lines = form in LINES and not (mode.stats or together)
    task = Task(shape, fields.extra(), form, mode.count)
    batches: Any = console.track(
        transcribe(run, task, engine.processes()) if lines else run,
        run.reader,
        beside_output=output.on_terminal and not mode.stats,  # which come at the end
        truncated=lambda: run.tally.truncated,
    )
    if mode.stats:
        _stats(run, batches, output, form, layout.max_length)
    elif form == "table":
        _draw(batches, tokenizer)
    elif lines:
        _copy(batches, output, run.reader.source.paths)
    else:
        _write(run, batches, output, form, fields.extra(), only_count=mode.count)
    _report(run, console)


def _check(shape: Layout, tokenizer: Tokenizer, console: Console) -> None:
    """Fail for options that cannot work before anything is read; warn of those without effect."""
    tokenizer.cut_at(shape)
    if shape.stride and not shape.overflowing:
        console.warn(
            "--stride is of windows, which --overflowing writes; without it, it does nothing"
        )
    if shape.max_length and "do_not" in shape.truncation and shape.padding != "max_length":
        console.detail(
            f"--max-length has no effect with --padding {shape.padding} and without --truncation"
        )
    if shape.offset_unit != "char" and "offset_mapping" not in shape.columns:
        console.warn("--offset-unit is of what --offsets writes; without it, it does nothing")


def _taken(shape: Layout, fields: FieldOptions, mode: ModeOptions, form: str) -> frozenset[str]:
    """Return the names that no carried field may have; a summary and a table show none."""
    if mode.stats or form == "table":
        return frozenset()
    return frozenset(fields_written(shape, fields.extra(), only_count=mode.count))


def _job(
    layout: LayoutOptions,
    fields: FieldOptions,
    mode: ModeOptions,
    overwrite: bool,
    model: Model,
    source: Source,
    form: str,
    pool: Pool,
) -> Job:
    """Return what a worker is told."""
    from bertcli.engines.jobs import TokenizeJob

    if mode.from_tokens or mode.count or mode.stats:
        raise UsageError("--engine ray writes tokens", "leave out --from-tokens, --count, --stats")
    shape = _layout(layout, fields, mode, fields.columns())
    extra = fields.extra()
    read = replace(source, taken=frozenset(fields_written(shape, extra)))
    return TokenizeJob(
        model, read, shape, form, extra, layout.parse_special, layout.window, overwrite
    )


def _draw(batches: Any, tokenizer: Tokenizer) -> None:
    from bertcli.cli.views import token_table

    with _screen() as draw:
        for batch in batches:
            for encoded in batch:
                draw(token_table(encoded, tokenizer))


def _layout(
    layout: LayoutOptions, fields: FieldOptions, mode: ModeOptions, columns: tuple[str, ...]
) -> Layout:
    if mode.stats:  # of the texts as they are: --max-length only says where they would be cut
        return Layout(columns, special_tokens=layout.special_tokens)
    return layout.layout(fields, columns)


def _form(mode: ModeOptions, output: OutputOptions, fields: FieldOptions) -> str:
    """Return the format to write; raise UsageError for one that cannot hold what is asked for."""
    if mode.count:
        return output.form(("txt", "jsonl", *TABULAR), piped="txt", terminal="txt")
    if mode.stats:
        return output.form(("table", "jsonl"))
    form = output.form((*ROWS, *ARRAYS))
    wordy = (fields.tokens, fields.offset_mapping, fields.word_ids, fields.sequence_ids)
    if form in ARRAYS and any(wordy):
        raise UsageError(f"{form} holds ids and masks, not tokens or offsets", "use parquet")
    return form


def _columns(mode: ModeOptions, fields: FieldOptions, form: str) -> tuple[str, ...]:
    if mode.count or mode.stats:
        return ("input_ids",)
    if form == "table":
        from bertcli.cli.views import TABLE_COLUMNS

        return TABLE_COLUMNS
    return fields.columns()


def _copy(parts: Iterable[Part], output: OutputOptions, paths: Sequence[str]) -> None:
    with output.open("finished", paths) as write:
        for part in parts:
            if part.data:
                write([part.data])


def _write(
    run: Run,
    batches: Any,
    output: OutputOptions,
    form: str,
    extra: tuple[str, ...],
    *,
    only_count: bool,
) -> None:
    sparse = form not in TABULAR
    with output.open(form, run.reader.source.paths) as write:
        for batch in batches:
            if only_count:
                write([count_row(encoded) for encoded in batch])
            else:
                write([row(item, run.layout, extra=extra, sparse=sparse) for item in batch])
        if form not in LINES and not run.tally.records:
            write([header(run, extra, only_count=only_count)])


def _stats(run: Run, batches: Any, output: OutputOptions, form: str, cut_at: int | None) -> None:
    from bertcli.stats import CorpusStats

    stats = CorpusStats(run.tokenizer, cut_at)
    if form == "table":
        from bertcli.cli.views import stats_view

        for batch in batches:
            stats.add(batch)
        with _screen() as draw:
            draw(stats_view(stats.summary()))
        return
    paths = run.reader.source.paths
    with output.open(form, paths) as write:  # now, so that what cannot be written fails at once
        for batch in batches:
            stats.add(batch)
        write([stats.summary()])


def _ids_of_tokens(
    source: InputOptions,
    fields: FieldOptions,
    output: OutputOptions,
    tokenizer: Tokenizer,
    console: Console,
) -> None:
    """Write the ids of tokens: those of the arguments, or of each line."""
    form, records = output.form(("txt", *ROWS, *ARRAYS)), 0
    if source.pair or source.pairs:
        raise UsageError("--from-tokens takes tokens of one text, not pairs", "leave out --pair")
    names = frozenset({"id", "input_ids"} | ({"tokens"} if fields.tokens else set()))
    reader = source.reader(console, pre_split=True, taken=names)
    given = [[Record(list(source.texts), line=1)]] if source.texts else reader.blocks()
    paths = reader.source.paths
    with _screen() if form == "table" else output.open(form, paths) as write:
        for record in chain.from_iterable(given):
            ids, unknown = tokenizer.ids_of(record.text)
            records += 1
            if unknown:
                console.warn(f"not in the vocabulary, so [UNK]: {' '.join(unknown[:10])}")
            if form == "table":
                from bertcli.cli.views import ids_table

                write(ids_table(record.text, ids))
            else:
                shown = {"tokens": tokenizer.tokens_of(ids)} if fields.tokens else {}
                write([ids_row(record, {"input_ids": ids} | shown)])
        if not records and form not in ("table", *LINES):
            columns = ("input_ids", "tokens") if fields.tokens else ("input_ids",)
            write([Header({name: Made() for name in columns})])
    console.close(records, reader)


def _screen() -> Any:
    from bertcli.cli.display.screen import drawing

    return drawing()


def _report(run: Run, console: Console) -> None:
    """Say what a user should know of the run."""
    tally = run.tally
    if run.layout.truncation == "do_not_truncate":
        console.warn(too_long(tally, run.tokenizer.limit))
    console.warn(truncated(tally, run.tokenizer.cut_at(run.layout)))
    console.warn(special_tokens(tally))
    if run.layout.padding == "longest" and tally.records > run.window:
        console.note(f"--padding longest worked on {run.window} records at a time (--window)")
    console.close(tally.records, run.reader)
