"""bertcli: BERT tokens and BERT vectors at the shell, and from Python.

    Tokenizer.load("bert-base-uncased")('I love NLP!')["input_ids"]
    Embedder.load("sentence-transformers/all-MiniLM-L6-v2").encode(["a", "b"])  # float32 [2, 384]
    model, report = load("folder")  # BertModel, or the head that the checkpoint has
    Classifier.load("sentiment")(["A wonderful film."])  # rows of `bertcli classify`
    train("reviews.jsonl", "sentiment", epochs=3)  # options of `bertcli train`
    search("late delivery", "reviews.csv", top_k=3)  # what `bertcli similar` prints

The names below are imported at their first use, so that `import bertcli` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.engines.torch_engine import load
    from bertcli.errors import BertcliError
    from bertcli.evaluation.evaluate import evaluate
    from bertcli.functions import (
        chunk,
        corpus_map,
        distil,
        duplicates,
        export,
        score,
        search,
        tokenize,
    )
    from bertcli.model_folder.find import find_model
    from bertcli.model_folder.load import save
    from bertcli.models.attention import Recording
    from bertcli.models.bert import BertModel
    from bertcli.models.config import BertConfig
    from bertcli.models.heads import (
        BertForMaskedLM,
        BertForMultipleChoice,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForReplacedTokens,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertLMHeadModel,
    )
    from bertcli.records.reader import Reader
    from bertcli.records.record import Record
    from bertcli.records.source import Source
    from bertcli.tasks.answer import Answerer
    from bertcli.tasks.bert_score import BertScorer
    from bertcli.tasks.choose import Chooser
    from bertcli.tasks.classify import Classifier
    from bertcli.tasks.fill_mask import MaskFiller
    from bertcli.tasks.next_sentence import NextSentencePredictor
    from bertcli.tasks.pseudo_likelihood import MaskedLMScorer
    from bertcli.tasks.rerank import Reranker
    from bertcli.tasks.tag import Tagger
    from bertcli.tasks.zero_shot import ZeroShotClassifier
    from bertcli.tokenizing.batch import Encoded, Layout
    from bertcli.tokenizing.tokenizer import Tokenizer
    from bertcli.training.train import train
    from bertcli.versions import __version__

_FUNCTIONS = "chunk corpus_map distil duplicates export score search tokenize"
_HEADS = """
BertForMaskedLM BertForMultipleChoice BertForNextSentencePrediction BertForPreTraining
BertForQuestionAnswering BertForReplacedTokens BertForSequenceClassification
BertForTokenClassification BertLMHeadModel
"""
_PLACES = {
    "__version__": "bertcli.versions",
    "Answerer": "bertcli.tasks.answer",
    "BertConfig": "bertcli.models.config",
    "BertModel": "bertcli.models.bert",
    "BertScorer": "bertcli.tasks.bert_score",
    "BertcliError": "bertcli.errors",
    "Chooser": "bertcli.tasks.choose",
    "Classifier": "bertcli.tasks.classify",
    "Embedder": "bertcli.embedding.embedder",
    "Encoded": "bertcli.tokenizing.batch",
    "Layout": "bertcli.tokenizing.batch",
    "MaskFiller": "bertcli.tasks.fill_mask",
    "MaskedLMScorer": "bertcli.tasks.pseudo_likelihood",
    "NextSentencePredictor": "bertcli.tasks.next_sentence",
    "Reader": "bertcli.records.reader",
    "Record": "bertcli.records.record",
    "Recording": "bertcli.models.attention",
    "Reranker": "bertcli.tasks.rerank",
    "Source": "bertcli.records.source",
    "Tagger": "bertcli.tasks.tag",
    "Tokenizer": "bertcli.tokenizing.tokenizer",
    "ZeroShotClassifier": "bertcli.tasks.zero_shot",
    "find_model": "bertcli.model_folder.find",
    "load": "bertcli.engines.torch_engine",
    "save": "bertcli.model_folder.load",
    "evaluate": "bertcli.evaluation.evaluate",
    "train": "bertcli.training.train",
    **dict.fromkeys(_FUNCTIONS.split(), "bertcli.functions"),
    **dict.fromkeys(_HEADS.split(), "bertcli.models.heads"),
}
__all__ = [
    "Answerer",
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForReplacedTokens",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertLMHeadModel",
    "BertModel",
    "BertScorer",
    "BertcliError",
    "Chooser",
    "Classifier",
    "Embedder",
    "Encoded",
    "Layout",
    "MaskFiller",
    "MaskedLMScorer",
    "NextSentencePredictor",
    "Reader",
    "Record",
    "Recording",
    "Reranker",
    "Source",
    "Tagger",
    "Tokenizer",
    "ZeroShotClassifier",
    "__version__",
    "chunk",
    "corpus_map",
    "distil",
    "duplicates",
    "evaluate",
    "export",
    "find_model",
    "load",
    "save",
    "score",
    "search",
    "tokenize",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'bertcli' has no attribute {name!r}")
    from importlib import import_module

    if name in ("BertModel", "load", "save", *_HEADS.split()):
        from bertcli.versions import require_torch

        require_torch(f"bertcli.{name}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
