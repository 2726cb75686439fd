"""`bertcli embed`: texts to vectors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bertcli.cli.console import Console
from bertcli.cli.embed_options import (
    ComputeOptions,
    FileOptions,
    LengthOptions,
    VectorOptions,
    chosen,
)
from bertcli.cli.engine import on_ray
from bertcli.cli.engine_options import EngineOptions
from bertcli.cli.inputs import InputOptions
from bertcli.cli.options import ConsoleOptions, ModelOptions, OutputOptions
from bertcli.errors import UsageError
from bertcli.vectors.sink import Target

if TYPE_CHECKING:
    from bertcli.engines.cluster import Pool
    from bertcli.engines.jobs import Job, Model
    from bertcli.pipeline import Embedder
    from bertcli.records import Reader, Source
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
    engine: EngineOptions,
    messages: ConsoleOptions,
) -> None:
    """Turn texts into vectors.

    [bold]bertcli embed "I love NLP!"[/bold]

    [bold]cat texts.txt | bertcli embed -o vectors.npy[/bold]
    """
    console = messages.console()
    if engine.engine == "ray":
        make = partial(_job, vector, length, compute, output)
        on_ray(make, source, model, output, engine, console)
        return
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


def _job(
    vector: VectorOptions,
    length: LengthOptions,
    compute: ComputeOptions,
    output: OutputOptions,
    model: Model,
    source: Source,
    form: str,
    pool: Pool,
) -> Job:
    """Return what a worker is told."""
    from bertcli.engines.jobs import EmbedJob

    options = chosen(vector, length, compute)
    threads = compute.threads or pool.cpus
    return EmbedJob(model, source, options, form, vector.precision, threads, output.overwrite)


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
    from bertcli.devices import use_threads
    from bertcli.pipeline import Embedder

    threads = use_threads(compute.threads)
    embedder = Embedder.open(folder, chosen(vector, length, compute), console.warn)
    if vector.pooling == "auto":
        where = embedder.sentence.found_in or "no pooling in the model's folder"
        console.note(f"pooling: {embedder.options.pooling} ({where})")
    settled = ", ".join(f"{name} {value}" for name, value in embedder.chosen().items())
    console.detail(f"model: {folder.path} ({folder.source}); threads {threads}, {settled}")
    return embedder


def _to_file(embedder: Embedder, reader: Reader, target: Target, console: Console) -> None:
    from importlib.metadata import version

    from bertcli.embedding import Writing

    about = {"versions": {name: version(name) for name in ("torch", "tokenizers", "numpy")}}
    writing = Writing(embedder, reader, target, about)
    for _ in console.track(
        writing, reader, beside_output=False, truncated=lambda: writing.tally.truncated
    ):
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
    from bertcli.embedding import metas, stacked

    if vector.precision != "float32":
        raise UsageError(f"--precision {vector.precision} needs -o FILE", "give an output file")
    run = embedder.run(reader)
    batches = console.track(
        embedder.embed(run),
        reader,
        beside_output=output.on_terminal,
        truncated=lambda: run.tally.truncated,
    )
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
    _report(run.tally, embedder, console)
    console.close(run.tally.records, reader)


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
