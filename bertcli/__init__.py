"""bertcli: BERT tokens and BERT vectors at the shell, and from Python.

    Tokenizer.load("bert-base-uncased")('I love NLP!')["input_ids"]
    Embedder.load("sentence-transformers/all-MiniLM-L6-v2").encode(["a", "b"])  # float32 [2, 384]
    model, report = load("folder")  # BertModel, or the head that the checkpoint has

The names below are imported when they are first used, so that `import bertcli` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertcli.checkpoints.load import save
    from bertcli.errors import BertcliError
    from bertcli.files.versions import __version__
    from bertcli.hub import find_model
    from bertcli.inference.named_models import load
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
    from bertcli.records.records import Record
    from bertcli.records.source import Source
    from bertcli.tokenizing.columns import Encoded, Layout
    from bertcli.tokenizing.tokenizer import Tokenizer
    from bertcli.vectors.text_embedder import TextEmbedder as Embedder

_NAMED = {"Embedder": "TextEmbedder"}  # where a class of the package is called otherwise
_HEADS = """
BertForMaskedLM BertForMultipleChoice BertForNextSentencePrediction BertForPreTraining
BertForQuestionAnswering BertForReplacedTokens BertForSequenceClassification
BertForTokenClassification BertLMHeadModel
"""
_PLACES = {
    "__version__": "bertcli.files.versions",
    "BertConfig": "bertcli.models.config",
    "BertModel": "bertcli.models.bert",
    "BertcliError": "bertcli.errors",
    "Embedder": "bertcli.vectors.text_embedder",
    "Encoded": "bertcli.tokenizing.columns",
    "Layout": "bertcli.tokenizing.columns",
    "Reader": "bertcli.records.reader",
    "Record": "bertcli.records.records",
    "Source": "bertcli.records.source",
    "Tokenizer": "bertcli.tokenizing.tokenizer",
    "find_model": "bertcli.hub",
    "load": "bertcli.inference.named_models",
    "save": "bertcli.checkpoints.load",
    **dict.fromkeys(_HEADS.split(), "bertcli.models.heads"),
}
__all__ = [
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
    "BertcliError",
    "Embedder",
    "Encoded",
    "Layout",
    "Reader",
    "Record",
    "Source",
    "Tokenizer",
    "__version__",
    "find_model",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'bertcli' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), _NAMED.get(name, name))


def __dir__() -> list[str]:
    return __all__
