"""BERT itself: all others are seen from here."""

from __future__ import annotations

from bertcli.families.family import Family

CLASSES = (
    "BertModel",
    "BertForMaskedLM",
    "BertLMHeadModel",
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForMultipleChoice",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
)

BERT = Family("bert", "BERT", classes={name: name for name in CLASSES})
