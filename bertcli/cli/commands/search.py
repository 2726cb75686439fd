"""The commands that compare vectors: `bertcli similar`, `duplicates` and `compare`."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from bertcli.cli.display.console import Console, stdin_is_terminal
from bertcli.cli.options.common import (
    DELIMITER,
    FILES,
    ID_FIELD,
    INFER_TYPES,
    JOIN,
    KEEP_FIELDS,
    MAX_RECORD_BYTES,
    TEXT_FIELD,
    WHOLE,
    ComputeOptions,
    ConsoleOptions,
    LineOutput,
    ModelOptions,
    ReportOutput,
    RowOutput,
    format_option,
    reader_of,
)
from bertcli.cli.options.completion import complete_model, complete_query_field
from bertcli.cli.options.corpus import FileOptions
from bertcli.cli.options.groups import (
    INPUT,
    OptionGroup,
    argument,
    decimal,
    flag,
    number,
    option,
    record,
)
from bertcli.errors import LOG, UsageError, counted
from bertcli.formats.registry import (
    JSONL,
    NESTED,
    ROWS,
    TXT,
    WHOLE_FILE,
    InputFormat,
)
from bertcli.formats.tables import TableHeader
from bertcli.formats.writers import Write, same_file_writer
from bertcli.io.paths import WatchedFiles
from bertcli.io.publish import MANIFEST
from bertcli.model_folder.files import files_for
from bertcli.model_folder.hub_cache import is_default
from bertcli.records.input import Input
from bertcli.records.reader import Reader, refuse_pipes
from bertcli.tasks.needed_models import NEEDED_MODELS

if TYPE_CHECKING:
    from bertcli.retrieval.duplicates import DuplicateRun
    from bertcli.retrieval.search import Answer, Search
    from bertcli.tasks.rerank_answers import AnswerReranker


class QueryOptions(OptionGroup):
    """The queries."""

    queries: list[str] | None = argument(
        "Texts to search for (default: read --input or stdin; on a terminal, a prompt).",
        "QUERY...",
    )
    input = FILES
    query_field = option(
        "Column or key of a query in --input (default: text).",
        "NAME",
        complete=complete_query_field,
    )
    top_k = number("Results per query.", "--top-k", "-k", default=10)
    threshold = option("Minimum score of a result.", "SCORE", annotation=float | None)
    query_prompt = option(
        "Text to put before each query (default: the model's prompt 'query').", "TEXT"
    )
    mine = flag(
        "Mine hard negatives for training. --input has pairs (anchor, positive); the output "
        "has texts of the corpus that are similar to the anchor, but not its positives."
    )
    margin = option(
        "Minimum difference in score between positive and negative (--mine).",
        "X",
        default=0.0,
        annotation=float,
    )

    @property
    def is_typed(self) -> bool:
        """True if queries are typed at a prompt: none is given, and stdin is a terminal."""
        return not (self.queries or self.input or self.mine) and stdin_is_terminal()

    def reader(self) -> Reader:
        """Return the reader of the queries, or of pairs: arguments, files or stdin."""
        return reader_of(
            self,
            texts=self.queries or (),
            objects=self.mine,
            text_field=self.query_field or ("anchor" if self.mine else "text"),
            text_option="query_field",
            pair_field="positive" if self.mine else None,
            no_pairs=not self.mine,
        )


class CorpusOptions(OptionGroup, panel=INPUT, record_class=Input):
    """The corpus to search."""

    corpus: list[str] | None = option(
        "File, folder or quoted glob of texts to search, repeatable; - is stdin.", "PATH"
    )
    vectors: Path | None = option(
        "Vectors of the corpus: read if the file exists, else written. Without --corpus, "
        "only they are searched.",
        "FILE",
    )
    index: Path | None = option(
        "Folder for an index of the corpus. It is made if there is none: vectors, texts and terms; "
        "each search computes only what is new or changed in --corpus. Without --corpus, it is "
        "searched as it is.",
        "DIR",
    )
    input_format = option(
        "Format of the corpus; auto: by the suffix.", default="auto", annotation=InputFormat
    )
    whole = WHOLE
    delimiter = DELIMITER
    skip_empty = flag(
        "Leave out empty texts, or allow them as hits (default: read them, but never as a hit).",
        default=None,
    )
    text_field = TEXT_FIELD
    join = JOIN
    id_field = ID_FIELD
    keep_fields = KEEP_FIELDS
    infer_types = INFER_TYPES
    corpus_prompt = option(
        "Text to put before each text of the corpus (default: the model's prompt 'document').",
        "TEXT",
    )
    max_record_bytes = MAX_RECORD_BYTES

    def refuse_file_names(self, queries: Sequence[str]) -> None:
        """Raise UsageError for queries that are names of files, and probably meant as a corpus."""
        files = [query for query in queries if os.path.isfile(query)]
        folders = [query for query in queries[1:] if os.path.isdir(query)]
        if len(files) > 1 and len(files) == len(queries):
            raise UsageError(
                f"{' and '.join(files)} are files, not queries"
                if len(files) == 2
                else f"{files[0]} and {len(files) - 1} other queries are files",
                f"--corpus {files[0]} --corpus {files[1]} searches files; -i reads queries",
            )
        if self.corpus or self.vectors or self.index:
            return
        for paths, file_type in ((files, "file"), (folders, "folder")):
            if paths:
                corpus = f"--corpus {quote(paths[-1])}"
                raise UsageError("nothing to search", f"{corpus} searches that {file_type}")

    def check(self, queries: Sequence[str]) -> None:
        """Raise UsageError if there is no corpus, or if stdin would be read twice."""
        if not (self.corpus or self.vectors or self.index):
            raise UsageError("nothing to search", "give --corpus FILE, or --vectors FILE")
        if "-" in (self.corpus or ()) and "-" in queries:
            raise UsageError("queries and the corpus cannot both be read from stdin")

    def reader(self, *, explain: bool) -> Reader | None:
        """Return the reader of the texts; None without --corpus."""
        if not self.corpus:
            return None
        from bertcli.retrieval.search import hit_fields

        skip_empty = bool(self.skip_empty)
        reserved = hit_fields(explain=explain)
        return reader_of(self, files=self.corpus, skip_empty=skip_empty, reserved=reserved)

    def inputs(self, queries: Reader, corpus_reader: Reader | None) -> list[str]:
        """Return the files that a search reads: of queries, texts, vectors and the index."""
        inputs = list(queries.source.paths)
        if corpus_reader:
            inputs += corpus_reader.source.paths
        if self.vectors:
            inputs.append(str(self.vectors))
        if self.index and not corpus_reader:  # with a corpus, the index depends on it
            inputs.append(str(self.index / MANIFEST))
        return inputs


class ScoreOptions(OptionGroup, panel="Scores"):
    """How texts are compared."""

    similarity: Literal["cosine", "dot"] | None = option(
        "How vectors are compared (default: the model's)."
    )
    hybrid = flag(
        "Find texts by their words too (BM25). Names and numbers are found so; reciprocal ranks of "
        "both searches are added."
    )
    rank_constant = number(
        "Constant added to each rank before its reciprocal is taken (--hybrid).",
        low=0,
        metavar="K",
        annotation=float,
        default=60.0,
    )
    lexical_weight = number(
        "Weight of ranks by words; ranks by vectors have weight 1 (--hybrid).",
        low=0,
        metavar="X",
        annotation=float,
        default=1.0,
    )
    lexical = flag(
        "Find texts by their words alone (BM25), without a model; --index keeps vectors all the "
        "same."
    )
    sparse = flag("Dot product of term weights, as in embed --sparse.")
    token_vectors = flag(
        "MaxSim of token vectors (ColBERT): the best match of each query token, summed."
    )
    explain = flag(
        "Add the tokens of each result with their shares of the score, which add up to it; a table "
        "colors the text by them."
    )
    rerank = option(
        "Sort the best --rerank-top results by this cross-encoder, as bertcli rerank does; "
        "`retrieval_score` is their score before.",
        "MODEL",
        complete=complete_model,
    )
    rerank_top = number("Results that are reranked (--rerank).", default=100)

    def cross_encoders(self, model: ModelOptions) -> list[ModelOptions]:
        """Return the model of --rerank, if given. Raises UsageError for the default model."""
        if self.rerank is None:
            return []
        if is_default(self.rerank):
            needed = NEEDED_MODELS["Reranker"]
            raise UsageError(
                f"{self.rerank} only makes vectors; --rerank needs {needed.model}",
                f"give --rerank MODEL: {needed.origin}",
            )
        return [model.changed(model=self.rerank, revision=None)]


def similar(
    query: QueryOptions,
    corpus: CorpusOptions,
    score: ScoreOptions,
    model: ModelOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Find the texts of a corpus most similar to a query.

    $ bertcli similar 'late delivery' --corpus reviews.txt --top-k 3
    $ bertcli similar 'what did we decide?' --corpus notes/
    $ bertcli similar -i queries.txt --corpus reviews.txt --vectors reviews.npy
    $ bertcli similar 'order 4711' --corpus reviews.txt --hybrid
    $ bertcli similar 'late delivery' --corpus reviews.txt --explain
    $ bertcli similar 'what did we decide?' --corpus notes/ --index notes.index
    """
    file_format = output.resolve_format(default=JSONL if query.mine else "")
    corpus.refuse_file_names(query.queries or ())
    is_typed = query.is_typed and file_format == "table" and output.on_terminal
    queries = Reader(Input()) if is_typed else query.reader()
    corpus.check(("-",) if is_typed else queries.source.paths)
    corpus_reader = corpus.reader(explain=score.explain)
    folder = model.folder(files_for(compute.dtype))
    models = [model, *score.cross_encoders(model)]
    from bertcli.embedding.options import EmbedOptions
    from bertcli.retrieval.search import Search, SearchOptions
    from bertcli.retrieval.search import answers as answers_of_search

    options = record(SearchOptions, query, corpus, score)
    rerank = None
    for cross_encoder in models[1:]:
        rerank = _open_reranker(cross_encoder, query, compute)
        options = replace(options, top_k=max(query.top_k, score.rerank_top), threshold=None)
    embed_options = record(EmbedOptions, compute, score)
    search: Search | None = None
    answers: Iterable[list[Answer]]
    if corpus_reader and score.lexical and not corpus.index:
        answers = _lexical_answers(queries, corpus_reader, model, options.top_k)
        if rerank:
            answers = rerank(answers)
    else:
        if has_whole_files(corpus_reader) and not embed_options.has_several_rows:
            embed_options = replace(embed_options, on_truncate="chunk", at="paragraph")
        search = Search.open(folder, embed_options, options, corpus_reader)
        if rerank:
            search.rerank = rerank
        by_dot = search.by_dot and not (score.hybrid or score.lexical)
        console.note("scores are dot products" if by_dot else "")
        if is_typed:
            from bertcli.cli.display.tables import QUERY_USAGE, search_at_prompt
            from bertcli.retrieval.search import stored_vectors

            with stored_vectors(search, console) as stored:
                console.note(QUERY_USAGE)
                search_at_prompt(stored)
            return
        answers = answers_of_search(search, queries, console)
    inputs = corpus.inputs(queries, corpus_reader)
    with output.open(file_format, inputs, *models, view="answer_views") as write:
        if search and query.mine:
            _write_negatives(search, queries, query.margin, write, console)
            return
        has_texts = corpus_reader is not None or corpus.index is not None
        _write_answers(answers, file_format, write, has_texts=has_texts)
    if search:
        console.warn_truncated(search.query_tally, search.embedder.max_length, unit="queries")
    if rerank:
        limit = rerank.reranker.layout.max_length
        console.warn_truncated(rerank.tally, limit, unit="pairs of query and text")
    console.close(queries)
    if corpus_reader and not corpus.index:
        console.close(corpus_reader)


def has_whole_files(reader: Reader | None) -> bool:
    """Return True if a file of a corpus is read as one text, such as Markdown."""
    return reader is not None and WHOLE_FILE in map(reader.format_of, reader.source.paths)


def _lexical_answers(
    queries: Reader, corpus_reader: Reader, model: ModelOptions, top_k: int
) -> Iterator[list["Answer"]]:
    """Return the answers of a lexical search, which reads only the tokenizer of the model."""
    from bertcli.retrieval.search import lexical_answers
    from bertcli.tokenizing.chunks import Chunker, ChunkSettings, chunk_records

    refuse_pipes(corpus_reader)
    tokenizer = model.tokenizer()
    if has_whole_files(corpus_reader):
        corpus_reader.divide_by(
            partial(chunk_records, Chunker(tokenizer, ChunkSettings(at="paragraph")))
        )
    return lexical_answers(queries.blocks(), corpus_reader, tokenizer, top_k)


def _open_reranker(
    model: ModelOptions, query: QueryOptions, compute: ComputeOptions
) -> "AnswerReranker":
    """Open a cross-encoder for the results of a search."""
    folder = model.folder(files_for(compute.dtype))
    from bertcli.tasks.head import Head, Settings
    from bertcli.tasks.rerank import Reranker
    from bertcli.tasks.rerank_answers import AnswerReranker

    head = Head.open(folder, Reranker.architecture, record(Settings, compute))
    return AnswerReranker(Reranker(head), query.top_k, query.threshold)


def _write_negatives(
    search: "Search", pairs: Reader, margin: float, write: Write, console: Console
) -> None:
    """Write hard negatives for pairs."""
    from bertcli.retrieval.mining import Mining
    from bertcli.retrieval.search import stored_vectors

    header = {"anchor": "", "positive": "", "negative": "", "margin": 0.0}
    with stored_vectors(search, console) as stored:
        mining = Mining(stored, pairs, margin)
        write_rows(mining, write, header)
    negatives = counted(mining.negatives, "negative")
    console.note(f"{negatives} for {counted(mining.pairs, 'pair')}")
    console.close(pairs)


def _write_answers(
    batches: Iterable[list["Answer"]], file_format: str, write: Write, *, has_texts: bool
) -> None:
    """Write answers: as JSONL, one object per query, else one row per hit."""

    def rows() -> Iterator[list[Any]]:
        for answers in batches:
            if file_format == "table":
                yield answers
            elif file_format in NESTED:
                yield [answer.fields() for answer in answers]
            else:
                yield [row for answer in answers for row in answer.rows()]

    header = {"query": "", "rank": 1, "score": 0.0, "row": 0, "id": 0}
    write_rows(rows(), write, header | ({"text": ""} if has_texts else {}))


def write_rows(batches: Iterable[list[Any]], write: Write, header: Mapping[str, Any]) -> None:
    """Write batches of rows. If there are none, write the header of an empty table."""
    any_rows = False
    for rows in filter(None, batches):
        any_rows = True
        write(rows)
    if not any_rows:
        write([TableHeader(header)])


ROWS_PER_WRITE = 1 << 15


class DuplicateFileOptions(FileOptions, record_class=Input):
    """The texts among which duplicates are looked for, and those that they are compared with."""

    against: list[str] | None = option(
        "File, folder or quoted glob of other texts, repeatable. Duplicates are then the texts "
        "that it has, such as test texts in training data; the input options apply to both.",
        "PATH",
    )

    def against_reader(self, reader: Reader) -> Reader | None:
        """Return the reader of the other texts, which say where they come from; None without.

        Raises UsageError for a file that is on both sides.
        """
        if not self.against:
            return None
        other = reader_of(self, files=self.against, with_location=True)
        names = {os.path.realpath(path): path for path in other.source.paths}
        for path in reader.source.paths:
            if os.path.realpath(path) in names:
                raise UsageError(
                    f"{path} is compared with itself",
                    "leave out --against to find duplicates in it",
                )
        return other


class DuplicateOptions(OptionGroup):
    """Which texts are duplicates, and which of them is kept."""

    threshold = number(
        "Minimum cosine similarity of duplicates.",
        low=0.01,
        high=1,
        metavar="SCORE",
        annotation=float,
        default=0.95,
    )
    keep: Literal["first", "longest"] = option(
        "Which of several duplicates to keep.", default="first"
    )
    chain = flag("Join duplicates of duplicates too, which may be far from the text that is kept.")


class DuplicatesOutput(LineOutput):
    """The output: the input without duplicates, and groups of duplicates."""

    output: Path | None = option(
        "File for the input without duplicates, with all columns; the suffix sets the format. "
        "Written completely or not at all.",
        "PATH",
        "--output",
        "-o",
    )
    format = format_option(
        *(TXT, "table", *ROWS),
        help_text="Format of --output; without it, of the groups on stdout, or txt: the texts that "
        "are kept. auto: by the suffix; for groups, a table on a terminal and JSONL in a pipe. "
        "table: of the groups on stdout.",
    )
    groups: Path | None = option(
        "File for the groups; the suffix sets the format. Default, and -: stdout.", "PATH"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups == Path("-"):
            self.groups = None
        files = [os.path.realpath(path) for path in (self.output, self.groups) if path]
        if len({*files}) < len(files):
            raise UsageError("--output and --groups are the same file", "give two names")
        if self.format == "table" and self.groups:
            raise UsageError(
                f"--format table is for stdout, but the groups go to {self.groups}",
                "leave out --groups or --format",
            )

    @property
    def copy_format(self) -> str:
        """The format of the input without duplicates; "" if it is not written."""
        if self.output and self.format == "table":  # the format of the groups on stdout
            return self.changed(format="auto").resolve_format()
        return self.resolve_format() if self.output or self.format == TXT else ""

    @property
    def groups_output(self) -> "DuplicatesOutput | None":
        """The output of the groups; None if stdout is used for the texts."""
        if self.groups is None and self.output is None:
            return None if self.format == TXT else self
        is_copy_format = self.format == TXT or (self.output and self.format != "table")
        groups_format = "auto" if is_copy_format else self.format
        return self.changed(output=self.groups, groups=None, format=groups_format, resume=False)

    @contextmanager
    def noting_missing_copy(self) -> Iterator[None]:
        """Log how to continue if the block fails after it has written the groups only."""
        outputs = WatchedFiles([path for path in (self.output, self.groups) if path])
        try:
            yield
        except BaseException:
            if self.output and outputs.changed == [self.groups]:
                advice = "run the command again"
                if not (self.overwrite or self.resume):  # which would refuse to replace the groups
                    advice += " with --resume"
                LOG.note(f"{self.groups} was written, {self.output} was not: {advice}")
            raise

    @contextmanager
    def open_groups(
        self, inputs: Sequence[str | Path], model: ModelOptions, run: "DuplicateRun"
    ) -> Iterator[Callable[[], None]]:
        """Yield a function that writes the groups of a run."""
        output = self.groups_output
        if output is None:
            yield lambda: None
            return
        file_format = output.resolve_format(ROWS if output.output else ("table", *ROWS))
        if self.resume and self.groups and self.groups.exists():
            with same_file_writer(self.groups, file_format) as write:
                yield lambda: _write_groups(run, file_format, write)
            return
        view_arguments = (run,)
        with output.open(
            file_format, inputs, model, view="duplicates_view", view_arguments=view_arguments
        ) as write:
            yield lambda: _write_groups(run, file_format, write)


def duplicates(
    texts: DuplicateFileOptions,
    selection: DuplicateOptions,
    model: ModelOptions,
    compute: ComputeOptions,
    output: DuplicatesOutput,
    console: ConsoleOptions,
) -> None:
    """Find near-duplicate texts, and write the input without them.

    A text is a duplicate if its cosine to a text that is kept is at least --threshold; texts are
    kept in the order of the input, or the longest first. stdout has the groups: the row that is
    kept, the rows that are not, and their scores. With --against, texts of other files are kept,
    and --output has the texts that they do not have.

    $ bertcli duplicates reviews.txt --threshold 0.95
    $ bertcli duplicates reviews.csv --keep longest -o fewer.csv --groups groups.jsonl
    $ bertcli duplicates test.csv --against train.csv -o clean.csv
    """
    copy_format = output.copy_format
    reader = reader_of(texts, files=texts.files)
    other_reader = texts.against_reader(reader)
    search = texts.search(reader, model, compute)
    from bertcli.retrieval.duplicates import DuplicateRun, Duplicates, Overlap
    from bertcli.retrieval.input_copy import InputCopy
    from bertcli.retrieval.search import stored_vectors

    inputs = texts.inputs(reader)
    run: DuplicateRun
    if other_reader:
        run = Overlap(search, selection.threshold, other=search.over(other_reader))
        inputs += other_reader.source.paths
    else:
        run = Duplicates(search, selection.threshold, keep=selection.keep, chain=selection.chain)
    with output.noting_missing_copy(), ExitStack() as stack:
        if copy_format:
            refuse_pipes(reader)
            copy = InputCopy(reader, copy_format)
            write = stack.enter_context(output.open(copy.writer, inputs, model))
            copy.refuse_input()  # before anything is computed
        write_groups = stack.enter_context(output.open_groups(inputs, model, run))
        for each in (search, run.other) if isinstance(run, Overlap) else (search,):
            stack.enter_context(stored_vectors(each, console))
        console.follow(run)
        write_groups()
        if copy_format:
            copy.write(run.is_kept, write)
    if search.by_dot:
        console.note("scores are cosines, though the model compares by dot product")
    console.note(run.summary if run.records else "")
    console.close(reader)
    if other_reader:
        console.close(other_reader)


def _write_groups(run: "DuplicateRun", file_format: str, write: Write) -> None:
    """Write groups: as JSONL, one object per group, else one row per duplicate."""
    if file_format == "table":
        write(run.groups)
    elif file_format in NESTED:
        for group in run.groups:
            write([run.fields(group)])
    else:
        rows = run.rows()
        write_rows(iter(lambda: [*islice(rows, ROWS_PER_WRITE)], []), write, run.header)


class PairOptions(OptionGroup):
    """The two files, and the tolerance."""

    a: str = argument("Vectors: .npy, .npz, .safetensors, .jsonl, .csv, .parquet.", "A")
    b: str = argument("Vectors of the same texts.", "B")
    tolerance = decimal(
        "Maximum difference of a value; above it, the exit code is 1.", envvar="BERTCLI_TOLERANCE"
    )
    worst = number("Number of rows to show, largest differences first.", default=5)


def compare(pair: PairOptions, output: ReportOutput, console: ConsoleOptions) -> None:
    """Compare two files of vectors: largest difference, cosines, worst rows.

    For vectors of different widths: the correlation of their similarity matrices, and the overlap
    of nearest neighbours (above 2,048 rows, of a sample).

    Exit code 0, or 1 when the numbers of rows differ or --tolerance is exceeded. Rows are numbered
    from 0.

    $ bertcli compare before.npy after.npy --tolerance 1e-5
    $ bertcli compare before.npy after.npy -f jsonl
    """
    from bertcli.retrieval.compare import compare as measure

    file_format = output.resolve_format()
    agreement = measure(pair.a, pair.b, pair.worst)
    with output.open(file_format, (pair.a, pair.b), view="comparison_view") as write:
        write([agreement.fields()])
    if pair.tolerance is not None:
        agreement.check(pair.tolerance)
