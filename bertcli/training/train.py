"""`bertcli.train`: train a model on a file of examples, from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertcli.keywords import file_name, group_options, init_fields, options_from
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.tasks.examples import READING, example_readers
from bertcli.tasks.learning import FieldNames
from bertcli.training.options import FineTuningJob, TrainingDevice, TrainingOptions
from bertcli.versions import require_torch

JOB_FIELDS_WITHOUT_OPTION = {"file", "base", "fields"}


def train(
    file: str | Path,
    output: str | Path,
    *,
    model: str | Path = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    resume: bool | None = False,
    overwrite: bool | None = False,
    quiet: bool | None = False,
    **options: Any,
) -> None:
    """Train a model on a file of examples, and write it to a folder.

    ``options`` are those of `bertcli train` with underscores: ``epochs``, ``frozen`` and so on;
    ``extra`` is a mapping of names to fields. None is the default. Progress and notes go to stderr,
    unless ``quiet``.

    Raises UsageError for invalid options, InputError for examples that cannot be used for training,
    ModelError for a model that cannot be trained, OutputError for a folder that exists.
    """
    require_torch("training")
    from bertcli.training.fine_tuning import fine_tune
    from bertcli.training.run import Checkpoints, PrintedTraining

    chosen = group_options(
        options,
        {
            "job": [
                name for name in init_fields(FineTuningJob) if name not in JOB_FIELDS_WITHOUT_OPTION
            ],
            "training": init_fields(TrainingOptions),
            "device": init_fields(TrainingDevice),
            "reading": [*READING, "pair_field", "label_field"],
        },
    )
    reading = chosen["reading"]
    job = options_from(
        FineTuningJob,
        chosen["job"],
        file=file_name(file),
        fields=FieldNames(
            text=reading.get("text_field"),
            pair=reading.pop("pair_field", None),
            label=reading.pop("label_field", None),
        ),
    )
    training_options: Mapping[str, Any] = {
        **chosen["training"],
        "eval_fraction": job.eval_fraction,
    }
    options_from(
        TrainingOptions, training_options
    )  # raises for invalid options before files are read
    readers = example_readers([job.file, job.eval], reading | {"offline": offline})
    display = PrintedTraining(bool(quiet))
    fine_tune(
        job,
        training_options,
        readers,
        lambda: find_model(os.fspath(model), files=MODEL_FILES, revision=revision, offline=offline),
        Checkpoints(
            Path(output),
            keep=chosen["training"].get("keep", TrainingOptions.keep),
            resume=bool(resume),
            overwrite=bool(overwrite),
        ),
        options_from(TrainingDevice, chosen["device"]),
        display,
    )
    for reader in readers:
        reader.summarize(display)
