"""`bertcli map`: what is in a corpus, at a look."""

import os
from pathlib import Path

from bertcli.cli.options.common import (
    INFER_TYPES,
    KEEP_FIELDS,
    ComputeOptions,
    ConsoleOptions,
    ModelOptions,
    RowOutput,
    fields_asked,
    format_option,
    reader_of,
)
from bertcli.cli.options.completion import complete_field
from bertcli.cli.options.corpus import FileOptions
from bertcli.cli.options.groups import OptionGroup, number, option
from bertcli.errors import UsageError
from bertcli.formats.registry import FINISHED, ROW_CHOICES
from bertcli.formats.writers import refuse_other_suffix
from bertcli.io.streams import suffix_of
from bertcli.records.input import Input
from bertcli.records.reader import refuse_pipes


class MapFileOptions(FileOptions, of=Input):
    """The texts to lay out."""

    keep_fields = KEEP_FIELDS
    infer_types = INFER_TYPES


class MapViewOptions(OptionGroup):
    """How the map is made."""

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
        """Recognize the suffix of a page, which is no format of rows."""
        super().__post_init__()
        if self.output and suffix_of(self.output) == ".html":
            if self.format != "auto":
                refuse_other_suffix(self.output, self.format, {".html": "html"})
            self.format = "html"

    is_beside = False  # whether the page is named after its input

    def write_page_beside(self, name: str) -> None:
        """Write a page beside the file or folder of this name, where no output is chosen."""
        if self.output or self.format not in ("auto", "html"):
            return
        if self.format == "html" and not self.on_terminal:
            return  # -f html into a pipe
        path = f"{name.rstrip('/')}.map.html" if os.path.exists(name) else "map.html"
        self.output = Path(path)
        self.format = "html"
        self.is_beside = True


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
    cluster and label. From a larger corpus, 20,000 texts are sampled. Needs scikit-learn
    (extra map).

    $ bertcli map reviews.csv
    $ bertcli map reviews.csv --color stars -o map.html
    $ bertcli map reviews.csv --vectors reviews.npy -o map.parquet
    """
    from bertcli.inspection.corpus_map import COLUMNS, CorpusMap, require_scikit_learn
    from bertcli.retrieval.search import stored_vectors

    output.write_page_beside((texts.files or ["-"])[0])
    form = output.form()
    if view.color and form != "html":
        raise UsageError(
            f"--color is for a page, not for {form}",
            "give -o FILE.html; --keep-fields copies fields to other formats",
        )
    require_scikit_learn()
    keep = texts.keep_fields
    taken = frozenset({"id", *COLUMNS})
    if form == "html":
        keep = view.color
        taken = frozenset()
    asked = (*fields_asked([texts]), *(["--color"] if view.color else []))
    reader = reader_of(texts, named=texts.files, keep=keep, reserved=taken, requested=asked)
    refuse_pipes(reader)
    search = texts.search(reader, model, compute)
    with output.open(FINISHED if form == "html" else form, texts.inputs(reader), model) as write:
        with stored_vectors(search, console) as stored:
            console.note("laying out the texts" if console.watched else "")
            corpus_map = CorpusMap.of(stored, view.clusters, view.seed)
        title = ", ".join(Path(path).name for path in reader.source.paths)
        write([corpus_map.page(title, view.color)] if form == "html" else corpus_map.rows())
    if output.is_beside:
        console.note(
            f"the map is written to {output.output}; -o FILE or -f jsonl for another output"
        )
    drawn = len(corpus_map.records)
    console.note(f"{drawn:,} of {corpus_map.total:,} texts in {len(corpus_map.labels)} clusters")
    console.close(reader)
