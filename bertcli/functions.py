"""Commands as functions: they take files, lists or data frames, and return the command's output.

    tokenize(['I love NLP!'])                                # [{"input_ids": [101, ...], ...}]
    search("late delivery", reviews, text_field="body", top_k=3)
    duplicates(pandas.read_csv("reviews.csv"), text_field="body", threshold=0.9)

Options are those of the commands with underscores, see `bertcli COMMAND --help`. ``texts`` is the
name of a file, a folder or a glob; an iterable of texts, pairs or mappings of fields; or a data
frame of pandas, polars or Arrow. Notes and warnings go to stderr, unless ``quiet``. All functions
raise BertcliError, with a message and a hint, if the command fails.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.engines.compute import Compute
from bertcli.errors import UsageError, option
from bertcli.formats.registry import JSONL, WHOLE_FILE
from bertcli.io.progress import PrintedDisplay
from bertcli.keywords import group_options, init_fields, options_from
from bertcli.model_folder.files import MODEL_FILES, TOKENIZER_FILES, files_for
from bertcli.model_folder.find import find_model
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.records.given import READING_OPTIONS, records_of
from bertcli.tokenizing.call import Call
from bertcli.tokenizing.chunks import CHUNK_COLUMNS, Chunker, ChunkRun, ChunkSettings
from bertcli.tokenizing.run import TokenOutput
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertcli.retrieval.search import Search

MODEL_OPTIONS = ("model", "revision", "offline")
Rows = list[dict[str, Any]]


def tokenize(texts: Any, *, quiet: bool = False, **options: Any) -> Rows:
    """Return the token ids of texts, one row per text, as `bertcli tokenize` prints them.

    ``options`` are ``model``, ``revision``, ``offline``; options of transformers' tokenizers
    (``padding``, ``truncation``, ``max_length``, ``return_offsets_mapping`` ...); and options for
    reading the texts (``text_field`` ...).
    """
    chosen = group_options(
        options, {"model": MODEL_OPTIONS, "call": init_fields(Call), "reading": READING_OPTIONS}
    )
    call = Call(**chosen["call"])
    if call.return_tensors:
        raise UsageError("rows are no tensors", "Tokenizer.load(...)(texts, return_tensors=...)")
    tokenizer = Tokenizer.load(
        _open_model(chosen["model"], TOKENIZER_FILES).path,
        parse_special=not call.split_special_tokens,
    )
    layout = call.layout(tokenizer.limit, tokenizer.model_inputs)
    row_fields = []
    if call.return_length:
        row_fields.append("length")
    if layout.truncation != "do_not_truncate":
        row_fields.append("truncated")
    task = TokenOutput(layout, tuple(row_fields))
    reader = records_of(
        texts, chosen["reading"], reserved=task.fields, pre_split=call.is_split_into_words
    )
    run = task.run(reader, tokenizer)
    rows: Rows = []
    for batch in run:
        rows += task.rows(batch)
    display = PrintedDisplay(quiet)
    display.warn(run.tally.truncation(tokenizer.truncated_length(layout)))
    reader.summarize(display)
    return rows


def chunk(texts: Any, *, quiet: bool = False, parse_special: bool = True, **options: Any) -> Rows:
    """Return the chunks of texts, one row per chunk, as `bertcli chunk` prints them.

    ``options`` are ``model``, ``revision``, ``offline``, ``max_length``, ``overlap``, ``at``
    ("token", "word", "sentence" or "paragraph"), ``first``, ``special_tokens``, and options for
    reading the texts.
    """
    chosen = group_options(
        options,
        {"model": MODEL_OPTIONS, "chunks": init_fields(ChunkSettings), "reading": READING_OPTIONS},
    )
    tokenizer = Tokenizer.load(
        _open_model(chosen["model"], TOKENIZER_FILES).path, parse_special=parse_special
    )
    settings = options_from(ChunkSettings, chosen["chunks"])
    reader = records_of(texts, chosen["reading"], no_pairs=True, reserved=frozenset(CHUNK_COLUMNS))
    rows: Rows = []
    for chunks in ChunkRun(reader, Chunker(tokenizer, settings), JSONL):
        rows += chunks
    reader.summarize(PrintedDisplay(quiet))
    return rows


def search(
    queries: Any,
    corpus: Any = None,
    *,
    rerank: str | Path | None = None,
    rerank_top: int = 100,
    quiet: bool = False,
    **options: Any,
) -> Rows:
    """Return the most similar texts of a corpus: one row per query, with its hits.

    ``queries`` is a text, or an iterable of texts. Without a ``corpus``, ``vectors`` or ``index``
    is searched. ``options`` are those of `bertcli similar` (``top_k``, ``threshold``, ``hybrid``,
    ``explain``, ``vectors``, ``index`` ...), those of `bertcli embed` that affect vectors, and
    options for reading the corpus. ``rerank`` is a cross-encoder that reorders the best
    ``rerank_top`` hits.
    """
    from bertcli.embedding.options import EmbedOptions
    from bertcli.records.input import Input
    from bertcli.records.reader import GivenTexts
    from bertcli.retrieval.search import Search, SearchOptions, answers, hit_fields

    chosen = group_options(
        options,
        {
            "model": MODEL_OPTIONS,
            "search": [name for name in init_fields(SearchOptions) if name != "corpus"],
            "vectors": init_fields(EmbedOptions),
            "reading": [name for name in READING_OPTIONS if name != "pair_field"],
        },
    )
    given = chosen["search"]
    for name in ("vectors", "index"):
        if name in given:
            given[name] = Path(given[name])
    if corpus is None and not (given.keys() & {"vectors", "index"}):
        raise UsageError(
            "nothing to search", f"give a corpus, {option('vectors')} or {option('index')}"
        )
    if given.get("lexical") and "index" not in given:
        raise UsageError(f"{option('lexical', True)} requires {option('index')}")
    settings = options_from(SearchOptions, given)
    if given.get("index") and isinstance(corpus, str | Path):
        settings = replace(settings, corpus=[os.fspath(corpus)])
    elif given.get("index") and corpus is not None:
        raise UsageError(f"{option('index')} follows files", "give their names as the corpus")
    reader = None
    has_whole_files = False
    if corpus is not None:
        reserved = hit_fields(explain=settings.explain)
        reader = records_of(corpus, chosen["reading"], reserved=reserved)
        has_whole_files = WHOLE_FILE in map(reader.format_of, reader.source.paths)
    embed_options = options_from(EmbedOptions, {"parallel": True} | chosen["vectors"])
    if has_whole_files and not (embed_options.has_several_rows or embed_options.makes_chunks):
        embed_options = replace(embed_options, on_truncate="chunk", at="paragraph")
    reranker = None
    if rerank is not None:
        if settings.explain:
            raise UsageError(f"{option('explain')} cannot be combined with {option('rerank')}")
        reranker = _open_reranker(rerank, settings, {**chosen["model"], "revision": None})
        settings = replace(settings, top_k=max(settings.top_k, rerank_top), threshold=None)
    folder = _open_model(chosen["model"], files_for(embed_options.dtype))
    display = PrintedDisplay(quiet)
    opened = Search.open(folder, embed_options, settings, reader)
    if reranker:
        opened.rerank = reranker
    query_reader = GivenTexts(queries, Input.of(no_pairs=True))
    rows: Rows = []
    for batch in answers(opened, query_reader, display):
        rows += [answer.fields() for answer in batch]
    display.warn(opened.query_tally.truncation(opened.embedder.max_length, "queries"))
    return rows


def duplicates(
    texts: Any,
    against: Any = None,
    *,
    threshold: float = 0.95,
    keep: str = "first",
    chain: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Rows:
    """Return groups of near-duplicate texts, as `bertcli duplicates` prints them.

    With ``against``, other texts, duplicates are the texts that these have. ``keep`` is "first" or
    "longest". ``options`` are ``model``, ``vectors``, those that affect vectors, and options for
    reading the texts.
    """
    from bertcli.retrieval.duplicates import DuplicateRun, Duplicates, Overlap
    from bertcli.retrieval.search import stored_vectors

    if not 0 < threshold <= 1:
        raise UsageError(f"{option('threshold', threshold)} is not above 0 and up to 1")
    if keep not in ("first", "longest"):
        raise UsageError(f"unknown keep {keep!r}", "one of first, longest")
    display = PrintedDisplay(quiet)
    search = _open_search(texts, options)
    run: DuplicateRun = Duplicates(search, threshold, keep=keep, chain=chain)
    with ExitStack() as stack:
        stack.enter_context(stored_vectors(search, display))
        if against is not None:
            if chain or keep != "first":
                raise UsageError(
                    f"{option('against')} cannot be combined with {option('chain')} or "
                    f"{option('keep')}"
                )
            is_file = isinstance(against, str | Path)
            reading = {name: options[name] for name in READING_OPTIONS if name in options}
            reader = records_of(against, reading, no_pairs=True, with_location=is_file)
            other = search.over(reader)
            stack.enter_context(stored_vectors(other, display))
            run = Overlap(search, threshold, other=other)
        display.follow(run)
    return [run.fields(group) for group in run.groups]


def corpus_map(
    texts: Any,
    output: str | Path | None = None,
    *,
    clusters: int | None = None,
    seed: int = 0,
    color: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Rows:
    """Return one row per text of a corpus: x, y, cluster and label, as `bertcli map` prints them.

    With ``output``, also write a web page, whose points are coloured by the field ``color``.
    ``options`` are those of `duplicates`. Needs scikit-learn (extra map).
    """
    from bertcli.inspection.corpus_map import COLUMNS, CorpusMap, require_scikit_learn
    from bertcli.retrieval.search import stored_vectors
    from bertcli.runs.row_run import write_file

    require_scikit_learn()
    if color is not None:
        options = {**options, "keep_fields": options.get("keep_fields") or color}
    search = _open_search(texts, options, reserved=frozenset({"id", *COLUMNS}))
    with stored_vectors(search, PrintedDisplay(quiet)) as stored:
        layout = CorpusMap.of(stored, clusters, seed)
    if output is not None:
        title = os.fspath(texts) if isinstance(texts, str | Path) else "corpus"
        write_file(Path(output), layout.page(title, color), overwrite=overwrite)
    return [row for block in layout.rows() for row in block]


def score(texts: Any = None, *, pairs: Any = None, quiet: bool = False, **options: Any) -> Rows:
    """Return how likely texts are, or how similar pairs are, as `bertcli score` prints it.

    Texts have a pseudo-log-likelihood; the options are ``per_token`` and ``within_word``, and
    ``model``, a masked language model, is required. ``pairs`` of a candidate and its reference have
    a BERTScore; the options are ``layers`` and ``idf``. Further ``options`` are ``revision``,
    ``offline``, ``max_length``, ``device`` and so on, and options for reading the texts.
    """
    from bertcli.tasks.bert_score import BertScorer
    from bertcli.tasks.head import HeadTask
    from bertcli.tasks.pseudo_likelihood import MaskedLMScorer
    from bertcli.tasks.results import fields_written, row

    if (texts is None) == (pairs is None):
        raise UsageError(
            "score needs texts or pairs", 'score(["a text"]), or score(pairs=[("a", "b")])'
        )
    task_class: type[HeadTask] = MaskedLMScorer if pairs is None else BertScorer
    chosen = group_options(
        options,
        {
            "model": MODEL_OPTIONS,
            "settings": [
                name for name in init_fields(task_class.settings_class) if name != "stride"
            ],
            "task": [name for name in init_fields(task_class) if name != "head"],
            "reading": READING_OPTIONS,
        },
    )
    reading = chosen["reading"]
    if pairs is None:
        reader = records_of(texts, reading, no_pairs=True)
    else:
        reader = records_of(pairs, reading, are_pairs=True)
    name = chosen["model"].pop("model", None)
    settings = {"parallel": True} | chosen["settings"]
    head = task_class.load(name, **chosen["model"], **settings).head
    stream = options_from(task_class, chosen["task"], head=head).stream(reader)
    reader.reserve(fields_written(stream.task.blank, flat=False) - stream.consumed)
    rows = [row(result) for window in stream for result in window]
    display = PrintedDisplay(quiet)
    display.warn(stream.tally.truncation(head.max_length))
    reader.summarize(display)
    return rows


def distil(
    output: str | Path,
    corpus: Any = None,
    *,
    dim: int | None = None,
    words: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Distil a model into a folder with a table of token vectors; return its manifest.

    With a ``corpus``, its most frequent ``words`` become tokens, and the agreement with the model
    is measured. ``options`` are ``model``, ``revision``, ``offline``, ``device`` and so on, and
    options for reading the corpus.
    """
    from bertcli.embedding.options import EmbedOptions
    from bertcli.exporting.distil import Distillation

    chosen = group_options(
        options,
        {"model": MODEL_OPTIONS, "compute": init_fields(Compute), "reading": READING_OPTIONS},
    )
    embed_options = options_from(EmbedOptions, {"parallel": True} | chosen["compute"])
    reader = None if corpus is None else records_of(corpus, chosen["reading"], no_pairs=True)
    if words and reader is None:
        raise UsageError(f"{option('words')} requires {option('corpus')}")
    display = PrintedDisplay(quiet)
    run = Distillation(
        _open_model(chosen["model"], files_for(embed_options.dtype)),
        Path(output),
        dim,
        words,
        embed_options,
        reader,
        overwrite,
    )
    display.follow(run)
    if reader:
        reader.summarize(display)
    return run.manifest


def export(
    output: str | Path,
    *,
    to: str = "openvino",
    dtype: str = "float32",
    accuracy: str = "high",
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Write a folder with a model as one graph, for OpenVINO or ONNX Runtime; return its manifest.

    ``accuracy`` is that of dtype int8: "high", or "fast". ``options`` are ``model``, ``revision``
    and ``offline``.
    """
    from bertcli.exporting import folder as exporting

    chosen = group_options(options, {"model": MODEL_OPTIONS})
    settings = options_from(
        exporting.ExportOptions, {"to": to, "dtype": dtype, "accuracy": accuracy}
    )
    if dtype == "int8" and to == "onnx":
        raise UsageError(
            f"{option('dtype', dtype)} cannot be combined with {option('to', to)}",
            f"OpenVINO runs 8-bit graphs: use {option('to', 'openvino')}",
        )
    source = _open_model(chosen["model"], MODEL_FILES)
    return exporting.export(source, Path(output), settings, overwrite=overwrite)


def _open_model(options: Mapping[str, Any], files: Sequence[str]) -> ModelFolder:
    """Return the folder of a model, with these files, from the options in `MODEL_OPTIONS`."""
    name = os.fspath(options.get("model", DEFAULT_MODEL))
    return find_model(
        name,
        files=files,
        revision=options.get("revision"),
        offline=bool(options.get("offline")),
    )


def _open_search(texts: Any, options: Mapping[str, Any], **settings: Any) -> Search:
    """Open a search over texts that are compared with each other, from options of `duplicates`."""
    from bertcli.embedding.options import EmbedOptions
    from bertcli.retrieval.search import Search, SearchOptions

    chosen = group_options(
        options,
        {
            "model": MODEL_OPTIONS,
            "vectors": init_fields(EmbedOptions),
            "reading": [name for name in READING_OPTIONS if name != "pair_field"],
            "file": ["vectors"],
        },
    )
    file = chosen["file"].get("vectors")
    reader = records_of(texts, chosen["reading"], no_pairs=True, **settings)
    embed_options = options_from(EmbedOptions, {"parallel": True} | chosen["vectors"])
    search_options = SearchOptions(vectors=None if file is None else Path(file), skip_empty=False)
    folder = _open_model(chosen["model"], files_for(embed_options.dtype))
    return Search.open(folder, embed_options, search_options, reader)


def _open_reranker(model: str | Path, search: Any, model_options: Mapping[str, Any]) -> Any:
    """Open a cross-encoder for the hits of a search."""
    from bertcli.tasks.head import Head, Settings
    from bertcli.tasks.rerank import Reranker
    from bertcli.tasks.rerank_answers import AnswerReranker

    folder = _open_model({**model_options, "model": model}, files_for("auto"))
    head = Head.open(folder, Reranker.architecture, Settings())
    return AnswerReranker(Reranker(head), search.top_k, search.threshold)
