"""The models that tasks need in place of the default model, and where to get them."""

from __future__ import annotations

from typing import NamedTuple


class NeededModel(NamedTuple):
    """The model that a task needs, and where to get one."""

    command: str
    model: str
    trained_by: str  # the command that trains one, or ""
    example: str  # name of one on the hub

    @property
    def origin(self) -> str:
        """Where to get one, for a hint."""
        folder = "a folder that has one"
        if self.trained_by:
            folder = f"a folder from `{self.trained_by}`"
        return f"{folder}, or on the hub for example {self.example}"


NEEDED_MODELS = {
    "MaskFiller": NeededModel(
        "fill-mask", "a masked language model", "bertcli pretrain run", "bert-base-uncased"
    ),
    "MaskedLMScorer": NeededModel(
        "score", "a masked language model", "bertcli pretrain run", "bert-base-uncased"
    ),
    "NextSentencePredictor": NeededModel(
        "next-sentence", "a next-sentence head", "bertcli pretrain run", "bert-base-uncased"
    ),
    "Classifier": NeededModel(
        "classify",
        "a classifier",
        "bertcli train",
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
    ),
    "ZeroShotClassifier": NeededModel(
        "classify --labels",
        "a model of natural language inference",
        "",
        "cross-encoder/nli-deberta-v3-small",
    ),
    "Reranker": NeededModel(
        "rerank", "a cross-encoder", "bertcli train", "cross-encoder/ms-marco-MiniLM-L6-v2"
    ),
    "Tagger": NeededModel("tag", "a tagger", "bertcli train", "dslim/bert-base-NER"),
    "Answerer": NeededModel(
        "answer",
        "a question-answering head",
        "bertcli train",
        "distilbert/distilbert-base-cased-distilled-squad",
    ),
    "Chooser": NeededModel(
        "choose", "a multiple-choice head", "", "LIAMF-USP/roberta-large-finetuned-race"
    ),
}
