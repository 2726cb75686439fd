"""`bertcli map`: an overview of a corpus, as a page or as rows."""

import os
from pathlib import Path

from bertcli.cli.options.common import (
    INFER_TYPES,
    KEEP_FIELDS,
    ComputeOptions,
    ConsoleOptions,
    ModelOptions,
    RowOutput,
    format_option,
    given_field_options,
    reader_of,
)
from bertcli.cli.options.completion import complete_field
from bertcli.cli.options.corpus import FileOptions
from bertcli.cli.options.groups import OptionGroup, number, option
from bertcli.errors import UsageError
from bertcli.formats.registry import ENCODED_ROWS, ROW_CHOICES
from bertcli.formats.writers import refuse_other_suffix
from bertcli.io.streams import suffix_of
from bertcli.records.input import Input
from bertcli.records.reader import refuse_pipes


class MapFileOptions(FileOptions, record_class=Input):
    """The texts of the map."""

    keep_fields = KEEP_FIELDS
    infer_types = INFER_TYPES


class MapViewOptions(OptionGroup):
    """Clusters, colors and seed of the map."""

    color = option(
        "Color the page by a field of the texts (default: by cluster).",
        "FIELD",
        complete=complete_field,
    )
    clusters = number("Number of clusters (default: by the number of texts, at most 24).", low=2)
    seed = number(
        "Random seed: the same seed gives the same bytes.",
        low=0,
        high=2**32 - 1,
        annotation=int,
        default=0,
        envvar="BERTCLI_SEED",
    )


class MapOutput(RowOutput):
    """The output: a page, or rows."""

    format = format_option("html", "table", *ROW_CHOICES)

    def __post_init__(self) -> None:
        """Set the format of a page from the suffix .html, which is not a format of rows."""
        super().__post_init__()
        if self.output and suffix_of(self.output) == ".html":
            if self.format != "auto":
                refuse_other_suffix(self.output, self.format, {".html": "html"})
            self.format = "html"

    is_named_after_input = False

    def name_after_input(self, name: str) -> None:
        """Write a page next to the file or folder of this name, if no output was given."""
        if self.output or self.format not in ("auto", "html"):
            return
        if self.format == "html" and not self.on_terminal:
            return  # -f html into a pipe
        path = f"{name.rstrip('/')}.map.html" if os.path.exists(name) else "map.html"
        self.output = Path(path)
        self.format = "html"
        self.is_named_after_input = True


def map(
    texts: MapFileOptions,
    view: MapViewOptions,
    model: ModelOptions,
    compute: ComputeOptions,
    output: MapOutput,
    console: ConsoleOptions,
) -> None:
    """Map a corpus: a page with a point for each text, and clusters with their terms.

    Without --output and --format, the page is FILE.map.html. Other formats have the columns x, y,
    cluster and label of every text. Of a larger corpus, 20,000 sampled texts are laid out and
    drawn; the others are placed between them. Needs scikit-learn (extra map).

    $ bertcli map reviews.csv
    $ bertcli map reviews.csv --color stars -o map.html
    $ bertcli map reviews.csv --vectors reviews.npy -o map.parquet
    """
    from bertcli.inspection.corpus_map import COLUMNS, CorpusMap, require_scikit_learn
    from bertcli.retrieval.search import stored_vectors

    output.name_after_input((texts.files or ["-"])[0])
    file_format = output.resolve_format()
    if view.color and file_format != "html":
        raise UsageError(
            f"--color is for a page, not for {file_format}",
            "give -o FILE.html; --keep-fields copies fields to other formats",
        )
    require_scikit_learn()
    keep = texts.keep_fields
    reserved = frozenset({"id", *COLUMNS})
    if file_format == "html":
        keep = view.color
        reserved = frozenset()
    requested = (*given_field_options([texts]), *(["--color"] if view.color else []))
    reader = reader_of(texts, files=texts.files, keep=keep, reserved=reserved, requested=requested)
    refuse_pipes(reader)
    search = texts.search(reader, model, compute)
    writer = ENCODED_ROWS if file_format == "html" else file_format
    with output.open(writer, texts.inputs(reader), model) as write:
        with stored_vectors(search, console) as stored:
            console.note("laying out the texts" if console.watched else "")
            corpus_map = CorpusMap.of(stored, view.clusters, view.seed)
        title = ", ".join(Path(path).name for path in reader.source.paths)
        if file_format == "html":
            write([corpus_map.page(title, view.color)])
        else:
            for rows in corpus_map.rows():
                write(rows)
    if output.is_named_after_input:
        console.note(
            f"the map is written to {output.output}; -o FILE or -f jsonl for another output"
        )
    written = len(corpus_map.drawn) if file_format == "html" else corpus_map.total
    console.note(f"{written:,} of {corpus_map.total:,} texts in {len(corpus_map.labels)} clusters")
    console.close(reader)
