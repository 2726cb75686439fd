"""What is written next to a trained model: manifest.json and the model card, README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcli.files.digests import sha256
from bertcli.files.typed_json import strict
from bertcli.files.versions import __version__, versions
from bertcli.training.options import FineTuningJob, TrainingOptions

if TYPE_CHECKING:
    from bertcli.training.labelled_texts import LabelledTexts

LIBRARIES = ("torch", "tokenizers", "numpy")
COMMANDS = {
    "classify": "classify",
    "multilabel": "classify",
    "regress": "classify",
    "tag": "tag",
    "answer": "answer",
    "embed": "embed",
}
PIPELINES = {
    "classify": "text-classification",
    "multilabel": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "embed": "sentence-similarity",
}


class RunSummary(NamedTuple):
    """What became of a run."""

    steps: int
    best: Mapping[str, Any]  # the evaluation of the weights that are kept, with its step


def put_description(
    folder: Path,
    texts: LabelledTexts,
    job: FineTuningJob,
    options: TrainingOptions,
    identity: Mapping[str, Any],
    summary: RunSummary,
) -> None:
    """Write the manifest and the model card."""
    numbers = {name: value for name, value in asdict(options).items() if name != "eval_fraction"}
    manifest = {
        "bertcli": __version__,
        "versions": versions(*LIBRARIES),
        **{key: value for key, value in identity.items() if key != "config"},
        "data": [_file(path) for path in texts.sources],
        "examples": {"train": len(texts.train), "eval": len(texts.held)},
        "options": {**asdict(job), **numbers},
        "steps": summary.steps,
        "metrics": dict(summary.best),
    }
    text = json.dumps(strict(manifest), indent=2, ensure_ascii=False) + "\n"
    (folder / "manifest.json").write_text(text, "utf-8")
    (folder / "README.md").write_text(model_card(texts, job.base, identity, summary), "utf-8")


def _file(path: str) -> dict[str, Any]:
    known = Path(path).is_file()
    return {"path": path, "sha256": sha256(Path(path)) if known else None}


def model_card(
    texts: LabelledTexts, base: str, identity: Mapping[str, Any], summary: RunSummary
) -> str:
    """Return README.md: what the model does, how it was made, how good it is."""
    task, labels = texts.task, ", ".join(f"`{name}`" for name in texts.names)
    numbers = {
        name: value
        for name, value in summary.best.items()
        if isinstance(value, float) and name != "eval_loss"
    }
    table = [f"| {name} | {value:.4f} |" for name, value in numbers.items()]
    metrics = ["", "| metric | held-out examples |", "|---|---|", *table] if table else []
    tags = [f"pipeline_tag: {PIPELINES[task]}"] if task in PIPELINES else []
    tags += [] if Path(base).is_dir() else [f"base_model: {base}"]
    fields = identity.get("config", {}).get("extra_fields", {}).values()
    ids = [f"Each text comes with ids of its words: `{'`, `'.join(fields)}`", ""] if fields else []
    lines = [
        "---",
        "tags:",
        "- bert",
        "- bertcli",
        *tags,
        "---",
        "",
        f"# BERT for {task}",
        "",
        f"`{base}`, trained with `bertcli train` ({identity['method']}) on "
        f"{len(texts.train):,} examples, evaluated on {len(texts.held):,}. `manifest.json` has "
        "the options, the versions and the sha256 of the data.",
        "",
        *ids,
        *([f"Labels: {labels}"] if labels else []),
        *metrics,
        "",
        "```",
        f"bertcli {COMMANDS[task]} {_arguments(texts)} -m THIS_FOLDER",
        "```",
        "",
    ]
    return "\n".join(lines)


def _arguments(texts: LabelledTexts) -> str:
    """Return the arguments of a command that uses the model."""
    record = texts.records[0]
    if record.extra:
        return "-i texts.jsonl"
    if texts.task == "answer":
        return '--question "a question" --context "a text"'
    paired = record.pair is not None and texts.task != "embed"
    return '"some text"' + (' --pair "another"' if paired else "")
