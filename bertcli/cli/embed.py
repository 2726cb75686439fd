"""`bertcli embed`: texts to vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertcli.cli.console import Console
from bertcli.cli.embed_options import (
    ComputeOptions,
    FileOptions,
    LengthOptions,
    VectorOptions,
    chosen,
)
from bertcli.cli.inputs import InputOptions
from bertcli.cli.options import ConsoleOptions, ModelOptions, OutputOptions
from bertcli.errors import UsageError
from bertcli.vectors.sink import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bertcli.pipeline import Embedded, Embedder
    from bertcli.progress import Progress
    from bertcli.records import Reader
    from bertcli.tokenizing import Tally

FORMATS = ("table", "jsonl", "csv", "npy", "npz", "safetensors", "parquet")


def embed(
    source: InputOptions,
    model: ModelOptions,
    vector: VectorOptions,
    length: LengthOptions,
    compute: ComputeOptions,
    output: OutputOptions,
    file: FileOptions,
    messages: ConsoleOptions,
) -> None:
    """Turn texts into vectors.

    [bold]bertcli embed "I love NLP!"[/bold]

    [bold]cat texts.txt | bertcli embed -o vectors.npy[/bold]
    """
    console = messages.console()
    form = output.form()
    if form not in FORMATS:
        raise UsageError(f"--format {form} makes no sense here", f"one of {', '.join(FORMATS)}")
    if file.resume and output.output is None:
        raise UsageError("--resume needs -o FILE", "a stream cannot be resumed")
    reader = source.reader(console)
    embedder = _open(model, vector, length, compute, console)
    if output.output is None:
        _to_stream(embedder, reader, vector, output, form, console)
        return
    target = Target(
        output.output, form, vector.precision, file.resume, output.overwrite, file.manifest
    )
    _to_file(embedder, reader, target, console)


def _open(
    model: ModelOptions,
    vector: VectorOptions,
    length: LengthOptions,
    compute: ComputeOptions,
    console: Console,
) -> Embedder:
    """Return the embedder that the options ask for; torch is imported here."""
    from bertcli.hub import MODEL_FILES, find_model

    folder = find_model(
        model.model, files=MODEL_FILES, revision=model.revision, offline=model.offline
    )
    from bertcli.devices import devices, use_threads
    from bertcli.fleet import open_embedder

    threads = use_threads(compute.threads)
    embedder = open_embedder(folder, chosen(vector, length, compute), console.warn)
    if vector.pooling == "auto":
        where = embedder.sentence.found_in or "no pooling in the model's folder"
        console.note(f"pooling: {embedder.options.pooling} ({where})")
    settled = ", ".join(f"{name} {value}" for name, value in embedder.chosen().items())
    console.detail(f"model: {folder.path} ({folder.source})")
    where = ", ".join(map(str, devices(compute.device)))
    console.detail(f"runs on {where}, threads {threads}; {settled}")
    return embedder


def _to_file(embedder: Embedder, reader: Reader, target: Target, console: Console) -> None:
    from importlib.metadata import version

    from bertcli.embedding import Writing

    about = {"versions": {name: version(name) for name in ("torch", "tokenizers", "numpy")}}
    progress = _progress(embedder)
    writing = Writing(embedder, reader, target, about, progress=progress)
    with console.follow(progress, reader, lambda: writing.tally):
        for _ in writing:
            pass
    if writing.complete:
        console.note(f"{target.path} is complete: there was nothing to do")
        return
    _report(writing.tally, embedder, console)
    console.close(writing.tally.records, reader)


def _to_stream(
    embedder: Embedder,
    reader: Reader,
    vector: VectorOptions,
    output: OutputOptions,
    form: str,
    console: Console,
) -> None:
    if vector.precision != "float32":
        raise UsageError(f"--precision {vector.precision} needs -o FILE", "give an output file")
    run = embedder.run(reader)
    batches, progress = embedder.embed(run), _progress(embedder)
    with console.follow(progress, reader, lambda: run.tally, beside_output=output.on_terminal):
        _show(batches, output, form)
    _report(run.tally, embedder, console)
    console.close(run.tally.records, reader)


def _show(batches: Iterable[list[Embedded]], output: OutputOptions, form: str) -> None:
    """Write the vectors to stdout, as data or for people."""
    from bertcli.embedding import metas, stacked

    if form == "table":
        from bertcli.cli.views import screen, vector_view

        with screen() as draw:
            if items := [item for batch in batches for item in batch]:
                draw(vector_view(items))
    elif form in ("jsonl", "csv"):
        from bertcli.vectors.fields import cells, lines

        rows = lines if form == "jsonl" else cells
        with output.open(form) as write:
            for batch in batches:
                write(rows(metas(batch), stacked(batch)))
    else:
        raise UsageError(f"{form} cannot be streamed", "give -o FILE")


def _progress(embedder: Embedder) -> Progress:
    """Return the counts of a run that begins."""
    from bertcli.progress import Progress

    embedder.encoder.tick = (progress := Progress()).batch
    return progress


def _report(tally: Tally, embedder: Embedder, console: Console) -> None:
    """Say what a user should know of the run."""
    if tally.truncated and embedder.options.on_truncate == "warn":
        console.warn(
            f"{tally.truncated} of {tally.records} texts were cut to {embedder.max_length} tokens; "
            f"{tally.cut} tokens are gone (--on-truncate window encodes all of them)"
        )
    if tally.literals:
        console.warn(
            f"{tally.literals} special tokens stood in the text and were taken as such; "
            "--no-parse-special makes them plain text"
        )
    if tally.empty:
        console.note(f"{tally.empty} texts were empty")
