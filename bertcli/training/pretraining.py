"""Pretraining as a task of the loop: prepared instances, a config, and BertForPreTraining."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import bert_folder, read_config, require_weights
from bertcli.errors import InputError, UsageError
from bertcli.files.digests import sha256
from bertcli.models.config import BertConfig
from bertcli.models.heads import BertForPreTraining
from bertcli.models.surgery import add_extra_embeddings, initialise
from bertcli.training import configuration
from bertcli.training.batches import held_out
from bertcli.training.checkpoints import put_model
from bertcli.training.objective import TrainedTask
from bertcli.training.options import PretrainingJob, TrainingOptions
from bertcli.training.pretraining_losses import PretrainingObjective, commonest_word
from bertcli.training.ranks import Ranks
from bertcli.training.result import RunSummary
from bertcli.training.shards import INDEX, Instances


@dataclass(frozen=True, kw_only=True)
class PretrainingTask(TrainedTask):
    """BertForPreTraining on the rows of prepared instances; the last weights are the result."""

    keeps_best: ClassVar[bool] = False

    config: BertConfig
    init: Path | None

    @classmethod
    def open(cls, job: PretrainingJob, options: TrainingOptions, ranks: Ranks) -> PretrainingTask:
        """Open and check the instances, and the config to train.

        Raises InputError or ModelError for what cannot be trained.
        """
        data, notes = _open(job.data, ranks, job.extra or None), list[str]()
        _refuse_other_fields(job, data)
        if any(shard["file"].endswith(".parquet") for shard in data.index["shards"]):
            notes.append(
                "random access to instances in Parquet is slow; safetensors is fast (prepare -f)"
            )
        objective, rows = _parted(job, data, options, ranks, notes)
        numbers = 1 if ranks.device.type != "cpu" else configuration.WEIGHT_TO_ADAM
        config = _config(job, data, objective.others or data, numbers)
        return cls(
            options=options,
            objective=objective,
            rows=rows,
            notes=notes,
            config=config,
            init=job.init,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run; files by their sha256."""
        init = self.init
        return {
            "config": self.config.to_dict(),
            "instances_sha256": sha256(self.objective.data.folder / INDEX),
            "init_sha256": init and _weights_sha256(init),
        }

    def model(self, checkpoint: Path | None) -> BertForPreTraining:
        """Build the model: fresh, from `--init`, or from a checkpoint.

        Weights are copied, not mapped, as the address of a tensor can change the last bits.
        """
        model = BertForPreTraining(self.config)
        source = checkpoint or self.init
        if source is None:
            initialise(model, self.config.initializer_range)
        else:
            found, _ = load(source, BertForPreTraining, dtype=torch.float32)
            config = self.config
            add_extra_embeddings(found.bert, config.extra_fields, config.extra_embeddings)
            model.load_state_dict(found.state_dict())
        return model

    def put(self, folder: Path, model: BertForPreTraining) -> None:
        """Write the model with its tokenizer."""
        put_model(folder, model, self.config, self.objective.data.folder)

    def publish(self, folder: Path, model: BertForPreTraining, summary: RunSummary) -> None:
        """Write the result: the same as a checkpoint's."""
        self.put(folder, model)


def _open(folder: Path, ranks: Ranks, extra: Collection[str] | None) -> Instances:
    """Open prepared instances; InputError when there are none, or their files were changed."""
    data = Instances.open(folder, extra)
    if ranks.first:
        data.verify()
    if not len(data):
        raise InputError(f"{folder}: no instances found")
    return data


def _parted(
    job: PretrainingJob, data: Instances, options: TrainingOptions, ranks: Ranks, notes: list[str]
) -> tuple[PretrainingObjective, Any]:
    """Return what is learnt, with the rows that are held out, and the rows to train on."""
    if job.eval_dir is not None:
        other = _open(job.eval_dir, ranks, data.extra_embeddings)
        rows, held = np.arange(len(data)), np.arange(len(other))
        configuration.refuse_other(data, other)
        return PretrainingObjective(data, held, other, commonest_word(data, rows)), rows
    rows, held = held_out(len(data), options.eval_fraction)
    if not len(held):
        return PretrainingObjective(data), rows
    if (data.index["options"].get("dupe_factor") or 1) > 1:
        notes.append(
            "held-out instances share texts with the training instances (dupe_factor); "
            "use --eval-dir to evaluate on other texts"
        )
    return PretrainingObjective(data, held, None, commonest_word(data, rows)), rows


def _refuse_other_fields(job: PretrainingJob, data: Instances) -> None:
    """Raise UsageError for extra ids that were read from another field than the one named."""
    for name, field_of_ids in data.extra_fields.items():
        if job.extra.get(name, field_of_ids) != field_of_ids:
            raise UsageError(
                f"--extra {name}={job.extra[name]}: the ids of {name} in {data.folder} are from "
                f"the field {field_of_ids}",
                f"--extra {name}={field_of_ids}, or prepare the instances again",
            )


def _config(job: PretrainingJob, data: Instances, held: Instances, numbers: int) -> BertConfig:
    if job.init is None:
        config = configuration.read(job.config or "", data)
    else:
        config = read_config(job.init)
        configuration.check(config, data, str(job.init), given=False)
    config = configuration.with_extra(config, data, held, str(job.init or job.config))
    configuration.refuse_too_large(config, str(job.init or job.config), numbers)
    return config


def _weights_sha256(folder: Path) -> str:
    """Return one sha256 for the files of weights in a folder."""
    return " ".join(sha256(path) for path in require_weights(bert_folder(folder)).all)
