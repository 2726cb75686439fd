"""`bertcli similar`: the texts of a corpus most similar to a query."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from bertcli.cli.commands.corpus_vectors import WINDOWS, say_not_kept, stored_vectors
from bertcli.cli.display.console import Console, stdin_is_terminal
from bertcli.cli.display.messages import truncated
from bertcli.cli.options.common import ROWS, ConsoleOptions, ModelOptions, RowOutput
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import INPUT, OptionGroup, argument, flag, number, option, record
from bertcli.cli.options.inputs import (
    Files,
    IdField,
    InputFormat,
    KeepFields,
    MaxRecordBytes,
    TextField,
    fields_asked,
    reader_of,
    source_paths,
)
from bertcli.errors import UsageError, counted
from bertcli.files.streams import LARGEST_RECORD
from bertcli.files.tables import TableHeader
from bertcli.files.writers import Write
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader
from bertcli.records.source import Source

if TYPE_CHECKING:
    from bertcli.vectors.search import Answer, Search

TAKEN = frozenset({"query", "rank", "score", "row", "id", "text"})  # fields of a hit


class QueryOptions(OptionGroup):
    """The queries."""

    queries: Annotated[
        list[str] | None,
        argument(
            "Texts to search for (default: read --input or stdin; on a terminal, a prompt).",
            "QUERY...",
        ),
    ] = None
    input: Files = None
    query_field: Annotated[
        str | None, option("Column or key of a query in --input (default: text).", "NAME")
    ] = None
    top_k: Annotated[int, number("Results per query.", "--top-k", "-k")] = 10
    threshold: Annotated[
        float | None, option("Only results with at least this score.", "SCORE")
    ] = None
    query_prompt: Annotated[
        str | None,
        option("Text to put before each query (default: the model's prompt 'query').", "TEXT"),
    ] = None

    mine: Annotated[
        bool,
        flag(
            "--mine",
            "Hard negatives for training: --input has pairs (anchor, positive); written are texts "
            "of the corpus that are near to the anchor, but no positive of it.",
        ),
    ] = False
    margin: Annotated[
        float, option("How much less alike than the positive a negative has to be (--mine).", "X")
    ] = 0.0

    @property
    def typed(self) -> bool:
        """Whether queries are typed at a prompt: none is given, and stdin is a terminal."""
        return not (self.queries or self.input or self.mine) and stdin_is_terminal()

    def reader(self, console: Console) -> Reader:
        """Return the reader of the queries, or of pairs: arguments, files or stdin."""
        if self.queries and self.input:
            raise UsageError("QUERY cannot be combined with --input")
        if self.margin and not self.mine:
            raise UsageError("--margin requires --mine")
        if self.mine:
            return self._pairs(console)
        source = Source(
            texts=tuple(self.queries or ()),
            paths=source_paths(self.input, given=bool(self.queries)),
            text_field=self.query_field,
            single=True,
            flags={self.query_field or "text": "--query-field"},
            asked=fields_asked(self, "query_field"),
        )
        return reader_of(source, console, self.queries or ())

    def _pairs(self, console: Console) -> Reader:
        """Return the reader of anchors, with positives as their pairs."""
        if self.queries:
            raise UsageError("--mine takes no QUERY", "give pairs with --input FILE")
        paths = source_paths(self.input, given=False)
        anchor = self.query_field or "anchor"
        source = Source(
            paths=paths,
            format="jsonl" if paths == ("-",) else "auto",
            text_field=anchor,
            pair_field="positive",
            flags={anchor: "--query-field"},
        )
        return reader_of(source, console)


class CorpusOptions(OptionGroup):
    """The corpus to search."""

    PANEL: ClassVar = INPUT

    corpus: Annotated[
        list[str] | None, option("File of texts to search, repeatable; - is stdin.", "FILE")
    ] = None
    vectors: Annotated[
        Path | None,
        option(
            "Vectors of the corpus: read if the file exists, else written. Without --corpus, they "
            "alone are searched.",
            "FILE",
        ),
    ] = None
    input_format: Annotated[InputFormat, option("Format of the corpus; auto: by the suffix.")] = (
        "auto"
    )
    text_field: TextField = None
    id_field: IdField = None
    keep_fields: KeepFields = None
    corpus_prompt: Annotated[
        str | None,
        option(
            "Text to put before each text of the corpus (default: the model's prompt 'document').",
            "TEXT",
        ),
    ] = None

    max_record_bytes: MaxRecordBytes = LARGEST_RECORD

    def check(self, queries: Sequence[str]) -> None:
        """Raise UsageError when there is nothing to search, or it cannot be read as needed."""
        if not (self.corpus or self.vectors):
            raise UsageError("nothing to search", "give --corpus FILE, or --vectors FILE")
        if self.keep_fields and not self.corpus:
            raise UsageError("--keep-fields requires --corpus", "vectors have no other fields")
        if "-" not in (self.corpus or ()):
            return
        if "-" in queries:
            raise UsageError("queries and the corpus cannot both be read from stdin")
        if self.vectors is not None and not self.vectors.exists():
            raise UsageError(
                "--vectors cannot be written for a corpus from stdin: it is read twice",
                "give a file, or write the vectors with bertcli embed -o",
            )

    def reader(self, console: Console) -> Reader | None:
        """Return the reader of the texts; None where vectors alone are searched."""
        if not self.corpus:
            return None
        changes: dict[str, Any] = {"paths": tuple(self.corpus), "format": self.input_format}
        asked = fields_asked(self, "text_field", "id_field", "keep_fields")
        source = record(Source, self, **changes, keep=self.keep_fields, taken=TAKEN, asked=asked)
        return reader_of(source, console)


class ScoreOptions(OptionGroup):
    """How texts are compared, where it is not by the cosine of their vectors."""

    PANEL: ClassVar = "Scores"

    sparse: Annotated[
        bool, flag("--sparse", "Dot product of weights of terms, as of embed --sparse.")
    ] = False
    token_vectors: Annotated[
        bool,
        flag(
            "--token-vectors",
            "MaxSim of vectors of tokens (ColBERT): the best match of each token of the query, "
            "summed.",
        ),
    ] = False

    @property
    def pooling(self) -> str:
        """The pooling mode. Raises UsageError for both."""
        if self.sparse and self.token_vectors:
            raise UsageError("--sparse cannot be combined with --token-vectors")
        return "none" if self.token_vectors else "auto"


def similar(
    query: QueryOptions,
    corpus: CorpusOptions,
    score: ScoreOptions,
    model: ModelOptions,
    compute: ComputeOptions,
    output: RowOutput,
    messages: ConsoleOptions,
) -> None:
    """Find the texts of a corpus most similar to a query, by cosine.

    $ bertcli similar 'late delivery' --corpus reviews.txt --top-k 3
    $ bertcli similar -i queries.txt --corpus reviews.txt --vectors reviews.npy
    $ bertcli similar 'late delivery' --vectors reviews.npy -f jsonl
    """
    console = messages.console()
    form = output.form(ROWS, terminal="jsonl" if query.mine else "table")
    typed = query.typed and form == "table" and output.on_terminal
    queries = Reader(Source()) if typed else query.reader(console)
    corpus.check(("-",) if typed else queries.source.paths)
    if query.mine:
        _check_mining(corpus, score, form)
    texts = corpus.reader(console)
    folder = model.folder(MODEL_FILES)
    from bertcli.embedding.options import EmbedOptions
    from bertcli.vectors.search import Search, SearchOptions

    options = record(SearchOptions, query, corpus)
    how = record(EmbedOptions, compute, score, pooling=score.pooling)
    search = Search.open(folder, how, options, texts, console)
    reading = [*queries.source.paths, *(corpus.corpus or ()), *filter(None, [corpus.vectors])]
    if query.mine:
        with output.open(form, reading, model) as write:
            _mine(search, queries, query.margin, write, console)
        return
    if typed:
        _prompt(search, console)
        return
    found = _answers(search, queries, console)
    if form == "table":
        from bertcli.cli.display.search_tables import show_answers

        show_answers(found, reading)
    else:
        with output.open(form, reading, model) as write:
            _write(found, form, write, with_text=texts is not None)
    _report(search, queries, console)


def _check_mining(corpus: CorpusOptions, score: ScoreOptions, form: str) -> None:
    """Raise UsageError for what hard negatives cannot be found in, or written as."""
    if corpus.corpus is None or form == "table":
        raise UsageError("--mine requires --corpus, and writes no table")
    if score.sparse or score.token_vectors:
        raise UsageError("--mine needs one vector per text")


def _prompt(search: "Search", console: Console) -> None:
    """Answer queries as they are typed."""
    from bertcli.cli.display.search_tables import USAGE, search_at_prompt

    with stored_vectors(search, console) as stored:
        console.note(USAGE)
        search_at_prompt(stored)


def _mine(search: "Search", pairs: Reader, margin: float, write: Write, console: Console) -> None:
    """Write hard negatives for pairs."""
    from bertcli.vectors.mining import Mining

    header = {"anchor": "", "positive": "", "negative": "", "margin": 0.0}
    with stored_vectors(search, console) as stored:
        mining = Mining(stored, pairs, margin)
        for rows in mining:
            if rows:
                write(rows)
        if not mining.negatives:
            write([TableHeader(header)])
    found = counted(mining.negatives, "negative")
    console.note(f"{found} for {counted(mining.pairs, 'pair')}")
    console.close(mining.pairs, pairs)


def _report(search: "Search", queries: Reader, console: Console) -> None:
    """Report warnings and counts of the queries and of the corpus."""
    console.warn(truncated(search.asked, search.embedder.max_length, what="queries"))
    console.close(search.asked.records, queries)
    if search.reader is not None:
        console.close(search.reader.records, search.reader, numbered=True)


def _answers(search: "Search", queries: Reader, console: Console) -> Iterator[list["Answer"]]:
    """Yield the answers as queries come, or after a pass over texts whose vectors are not kept."""
    if search.options.vectors is not None:
        with stored_vectors(search, console):
            yield from search.answering(queries.blocks())
        return
    from bertcli.vectors.search import PassingSearch

    run = PassingSearch(search, list(queries))
    console.follow(run)
    console.warn(truncated(run.tally, search.embedder.max_length, WINDOWS))
    say_not_kept(run.tally.records, console)
    yield run.answers()


def _write(found: Iterable[list["Answer"]], form: str, write: Write, *, with_text: bool) -> None:
    """Write answers: an object each as JSONL, else a row for each hit."""
    header = {"query": "", "rank": 1, "score": 0.0, "row": 0, "id": 0}
    some = False
    for answers in found:
        if form == "jsonl":
            rows = [answer.fields() for answer in answers]
        else:
            rows = [row for answer in answers for row in answer.rows()]
        some = some or bool(rows)
        if rows:
            write(rows)
    if not some:
        write([TableHeader(header | ({"text": ""} if with_text else {}))])
