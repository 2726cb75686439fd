"""`bertcli embed`: texts to vectors."""

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import typer

from bertcli.cli.commands.on_ray import EmbedEngineOptions, on_ray
from bertcli.cli.display.console import Console
from bertcli.cli.options.common import (
    AT,
    OVERLAP,
    PARSE_SPECIAL,
    PROMPT,
    PROMPT_NAME,
    SPECIAL_TOKENS,
    ComputeOptions,
    ConsoleOptions,
    InputOptions,
    ModelOptions,
    VectorOutput,
    interrupted_note,
    max_length_option,
)
from bertcli.cli.options.groups import (
    LAYOUT,
    OUTPUT,
    OptionGroup,
    flag,
    number,
    option,
    record,
)
from bertcli.cli.options.vectors import pooling_option
from bertcli.embedding.options import (
    EmbedOptions,
    refuse_format,
    refuse_stream,
)
from bertcli.errors import UsageError, counted
from bertcli.model_folder.files import files_for
from bertcli.tokenizing.batch import CHUNK_FIELDS

if TYPE_CHECKING:
    from bertcli.embedding.pooling import EmbeddedBlock
    from bertcli.embedding.record_embedder import RecordEmbedder
    from bertcli.ray.run import Pool, ShardJob
    from bertcli.records.input import Input
    from bertcli.records.reader import Reader
    from bertcli.runs.vector_run import VectorRun
    from bertcli.tokenizing.run import TokenCounts


class VectorOptions(OptionGroup, panel="Vectors", record_class=EmbedOptions):
    """How vectors are computed from hidden states."""

    pooling = pooling_option(
        "cls, mean, max, ... (auto: the model's, else mean). All: cls, mean, max, mean_sqrt_len, "
        "weightedmean and lasttoken; several, as in mean+max, are concatenated. Or pooler; none "
        "(--token-vectors)."
    )
    token_vectors = flag(
        "One vector per token, special tokens included. For late-interaction models "
        "(ColBERT), vectors of documents, or of queries with --prompt-name query."
    )
    word_vectors = option(
        "One vector per word: of its first or last token, or the mean or max of all."
    )
    sparse = flag(
        "Term weights instead (SPLADE, BGE-M3), as jsonl, npz (a scipy.sparse matrix) or "
        "parquet. --pooling max or sum (auto: the model's). Masked language models need "
        "torch. --prompt-name query: for models with a table of query weights."
    )
    top_terms = number("Keep the N largest weights of each text (--sparse).")
    layers: str = option(
        "-1 is the last layer, 0 the embedding output; layers above the highest one are not "
        "computed.",
        "L,...",
        default="-1",
    )
    layer_combine = option("How to combine several layers.")
    normalize = flag(
        "Scale vectors to length 1 (default: the model's). For tokens and words, off by default.",
        default=None,
    )
    dim = number("Keep the first N dimensions, before normalization (Matryoshka).")
    precision: Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"] = option(
        "Number format of the output.", default="float32"
    )
    prompt = PROMPT
    prompt_name = PROMPT_NAME


class LengthOptions(OptionGroup, panel=LAYOUT, record_class=EmbedOptions):
    """How long texts are handled."""

    max_length = max_length_option("Truncate to N tokens (default: the model's limit).", low=2)
    on_truncate = option(
        "Handling of longer texts. window: encode the whole text in overlapping windows. "
        "chunk: one vector per chunk, as in `bertcli chunk`. late-chunk: the same, but each chunk "
        "is encoded within its text (late chunking).",
        envvar="BERTCLI_ON_TRUNCATE",
    )
    stride = number("Tokens shared by neighbouring windows.", low=0)
    overlap = OVERLAP
    at = AT
    special_tokens = SPECIAL_TOKENS
    parse_special = PARSE_SPECIAL


class VectorFileOptions(OptionGroup, panel=OUTPUT):
    """How files of vectors are written."""

    update = flag(
        "Update an output to a changed input: embed only new and changed texts. Resumes an "
        "interrupted update."
    )
    manifest = flag("Write a manifest next to the output.", default=True)


PAIR_OF_SENTENCE_MODEL = (
    "a pair becomes one vector of both texts, which this sentence-embedding model was not trained "
    "for; embed the texts one by one, or score pairs with classify"
)


def embed(
    source: InputOptions,
    model: ModelOptions,
    vector: VectorOptions,
    length: LengthOptions,
    compute: ComputeOptions,
    output: VectorOutput,
    file: VectorFileOptions,
    engine: EmbedEngineOptions,
    console: ConsoleOptions,
) -> None:
    """Turn texts into vectors.

    $ bertcli embed 'I love NLP!'
    $ cat texts.txt | bertcli embed -o vectors.npy
    $ bertcli embed -i reviews.csv --text-field body -o vectors.parquet
    """
    console.beside_output = output.on_terminal
    options = record(EmbedOptions, vector, length, compute)
    file_format = output.format if engine.engine == "ray" else output.resolve_format()
    if not options.per_token:  # the index of token and word vectors stores the fields
        source.refuse_kept_fields(file_format)
    if engine.engine == "ray":
        _embed_on_ray(source, model, vector, options, output, engine, console)
        return
    if output.output is None and file.update:
        raise UsageError("--update requires --output")
    if file_format != "table":
        refuse_format(file_format, options)
        if output.output is None:
            refuse_stream(file_format, vector.precision)
    elif vector.precision != "float32":
        raise UsageError(
            f"a table shows float32, not --precision {vector.precision}",
            "give -f jsonl, or -o FILE",
        )
    reader = source.reader()
    if file_format != "table":
        reader.reserve(_reserved_fields(options))  # imports numpy, so not before the input is open
    folder = model.folder(files_for(options.dtype))
    from bertcli.embedding.record_embedder import RecordEmbedder  # imports the backend

    embedder = RecordEmbedder.open(folder, options, reads_extra_ids=True)
    sentence = embedder.sentence
    pooling_source = sentence.found_in or "not specified by the model"
    pooling = (
        ""
        if options.has_several_rows
        else f"pooling: {embedder.options.pooling} ({pooling_source})"
    )
    console.detail(pooling)
    reader = embedder.divide_texts(reader)
    if (source.pairs or source.pair) and sentence.pooling:
        console.note(PAIR_OF_SENTENCE_MODEL)
    if output.output is None:
        tally = _embed_to_stdout(embedder, reader, vector.precision, file_format, console)
    else:
        from bertcli.formats.precision import RANGED

        if vector.precision in RANGED and not file.manifest:
            console.warn(
                f"without a manifest, {vector.precision} cannot be converted back, which "
                "similar and compare need"
            )
        from bertcli.runs.vector_run import VectorRun, VectorTarget

        target = record(
            VectorTarget,
            vector,
            output,
            file,
            path=output.output,
            file_format=file_format,
            has_manifest=file.manifest,
        )
        tally = _embed_to_file(VectorRun(embedder, reader, target), console)
    if options.on_truncate == "warn":
        advice = "; --on-truncate window encodes all of the text"
        console.warn_truncated(tally, embedder.max_length, advice)
    if options.on_truncate == "late-chunk":
        console.note(tally.several_windows(embedder.window_length))
    console.warn_special_tokens(tally)
    console.note_empty(tally)
    if options.pooling == "auto" and not sentence.found_in and not console.verbose:
        console.note(pooling)
    console.close(reader)


def _embed_on_ray(
    source: InputOptions,
    model: ModelOptions,
    vector: VectorOptions,
    options: EmbedOptions,
    output: VectorOutput,
    engine: EmbedEngineOptions,
    console: ConsoleOptions,
) -> None:
    """Write a folder of files on the workers of a Ray cluster."""

    def make_job(find_model: Any, source: "Input", file_format: str, pool: "Pool") -> "ShardJob":
        from bertcli.ray.run import EmbedJob

        return record(
            EmbedJob,
            vector,
            output,
            model=find_model,
            source=source.changed(reserved=_reserved_fields(options)),
            options=replace(options, threads=options.threads or pool.cpus),
            file_format=file_format,
        )

    on_ray(make_job, source, model, output, engine, console)


def _reserved_fields(options: EmbedOptions) -> frozenset[str]:
    """Return the fields of the output, whose names no carried field may have."""
    from bertcli.formats.vector_writer import SEVERAL_VECTORS_FIELDS, TERM_FIELDS, VECTOR_FIELDS

    names = SEVERAL_VECTORS_FIELDS if options.per_token else VECTOR_FIELDS
    if options.sparse:
        names = TERM_FIELDS
    return frozenset(names) | frozenset(CHUNK_FIELDS if options.makes_chunks else ())


def _embed_to_file(run: "VectorRun", console: Console) -> "TokenCounts":
    """Execute a run that writes a file, and report the result. Exit if the file is complete."""
    from bertcli.runs.run_folder import OutputState

    target = run.target
    start = monotonic()
    if not run.embedder.runtime.engine.same_bits:
        console.detail("the last bits of a vector depend on its batch with the kernels used here")
    try:
        result = console.follow(run)
    except KeyboardInterrupt:
        console.note(interrupted_note(target, run.committed))
        raise
    for name in result.unchecked:
        console.note(f"{name} cannot be read twice: only its committed records were compared")
    if result.state is OutputState.COMPLETE:
        console.note(f"{target.path} is already complete: nothing to do")
        raise typer.Exit
    console.note(run.reuse_note)
    if console.watched:
        vectors = f"vectors of {counted(run.tally.records, 'text')}"
        console.note(f"{vectors} written to {target.path} in {monotonic() - start:,.1f} s")
    return run.tally


def _embed_to_stdout(
    embedder: "RecordEmbedder",
    reader: "Reader",
    precision: str,
    file_format: str,
    console: Console,
) -> "TokenCounts":
    """Write vectors to stdout, or draw the first ones as a table."""
    from bertcli.embedding.embed_run import EmbedRun
    from bertcli.runs.embedded_rows import stdout_writer

    if file_format == "table":
        from bertcli.cli.display.tables import MAX_DRAWN, show, vector_views

        blocks: list[EmbeddedBlock] = []

        def keep_first(block: "EmbeddedBlock") -> None:
            if sum(map(len, blocks)) < MAX_DRAWN:
                blocks.append(block)

        run = EmbedRun(embedder, reader, keep_first)
        console.follow(run)
        show(*vector_views(blocks, run.tally.records, embedder.term_names))
    else:
        with stdout_writer(file_format, precision, embedder.term_names) as write:
            run = EmbedRun(embedder, reader, write)
            console.follow(run)
    return run.tally
