"""`bertcli.evaluate`: the Python API that computes the metrics of a model on examples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bertcli.embedding.options import EmbedOptions
from bertcli.errors import PrintedLog, UsageError, option
from bertcli.evaluation.report import evaluations, interval_warning, report
from bertcli.formats.tables import rounded
from bertcli.keywords import file_name, group_options, init_fields, options_from
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.tasks.evaluated_model import EvaluatedModel
from bertcli.tasks.examples import READING, example_readers
from bertcli.tasks.head import Settings
from bertcli.tasks.learning import FieldNames
from bertcli.tasks.registry import TASK_NAMES

# Options of `EmbedOptions` for the evaluation of vectors.
VECTOR_OPTIONS = (
    "backend",
    "device",
    "dtype",
    "threads",
    "batch_tokens",
    "window",
    "max_length",
    "parse_special",
    "prompt",
    "prompt_name",
)


def evaluate(
    file: str | Path | None = None,
    model: str | Path = DEFAULT_MODEL,
    *,
    queries: str | Path | None = None,
    corpus: str | Path | None = None,
    qrels: str | Path | None = None,
    compare: str | Path | None = None,
    revision: str | None = None,
    offline: bool = False,
    quiet: bool | None = False,
    **options: Any,
) -> dict[str, Any]:
    """Return the metrics of a model on a file of examples, with 95 % confidence intervals.

    ``options`` are the options of `bertcli evaluate`, with underscores; None means the default.
    Warnings go to stderr, unless ``quiet``. With ``queries``, ``corpus`` and ``qrels`` instead of a
    file, return the metrics of a search. ``compare`` is a second model to compare with.

    Raises UsageError for invalid options, InputError for examples that cannot be read, ModelError
    for a model that cannot predict the labels of the examples.
    """
    field_options = ("text_field", "pair_field", "label_field")
    chosen = group_options(
        options,
        {
            "settings": init_fields(Settings),
            "vectors": VECTOR_OPTIONS,
            "reading": READING,
            "examples": [*field_options, "task"],
        },
    )
    search = [queries, corpus, qrels]
    if (file is None) == (queries is None) or any(search) != all(search):
        raise UsageError(
            f"give either a file of examples, or {option('queries')}, {option('corpus')} and "
            f"{option('qrels')}"
        )
    task = chosen["examples"].get("task")
    if task not in (None, *TASK_NAMES):
        raise UsageError(f"unknown task {task!r}", f"one of {', '.join(TASK_NAMES)}")
    settings = options_from(Settings, {"parallel": True} | chosen["settings"])
    embed_options = options_from(EmbedOptions, {"parallel": True} | chosen["vectors"])
    models = [
        EvaluatedModel(
            find_model(os.fspath(name), files=MODEL_FILES, revision=revision, offline=offline),
            settings,
            embed_options,
        )
        for name in (model, compare)
        if name is not None
    ]
    paths = [file_name(path) for path in (file, queries, corpus) if path is not None]
    readers = example_readers(paths, chosen["reading"] | {"offline": offline})
    examples = chosen["examples"]
    names = FieldNames(*(examples.get(name) for name in field_options))
    qrels_path = None if qrels is None else os.fspath(qrels)
    results = evaluations(models, readers, qrels_path, task, names)
    log = PrintedLog(bool(quiet))
    log.warn(interval_warning(results[0], compared=len(models) > 1))
    for evaluated in models:
        log.warn(evaluated.tally.truncation(evaluated.max_length))
    for reader in readers:
        reader.summarize(log)
    metrics: dict[str, Any] = rounded(report(*results))
    return metrics
