"""`load(folder, cls, fresh=True)`: a head for training, drawn at random where there is none."""

import pytest
import torch

from bertcli import load
from bertcli.errors import ModelError
from bertcli.models.heads import BertForSequenceClassification, BertForTokenClassification


def test_a_head_that_is_missing_is_drawn(models):
    folder = models("BertForMaskedLM")
    with pytest.raises(ModelError, match=r"needs .*classifier\.weight"):
        load(folder, BertForSequenceClassification)
    torch.manual_seed(1)
    model, report = load(folder, BertForSequenceClassification, fresh=True, labels=("a", "b", "c"))
    assert set(report.fresh) > {"classifier.weight", "classifier.bias"} and not report.faults()
    assert model.classifier.weight.shape == (3, 32)
    assert model.classifier.weight.abs().max() <= 2 * model.config.initializer_range
    assert not model.classifier.bias.any()
    assert model.config.label2id == {"a": 0, "b": 1, "c": 2}
    torch.manual_seed(1)
    again, _ = load(folder, BertForSequenceClassification, fresh=True, labels=("a", "b", "c"))
    assert torch.equal(again.classifier.weight, model.classifier.weight)


def test_a_head_that_is_there_is_read(models):
    folder = models("BertForTokenClassification")
    model, report = load(folder, BertForTokenClassification, fresh=True)
    stored, _ = load(folder, BertForTokenClassification)
    assert report.fresh == () and torch.equal(model.classifier.weight, stored.classifier.weight)
    other, report = load(folder, BertForTokenClassification, fresh=True, labels=[*"abcde"])
    assert report.fresh == ("classifier.weight", "classifier.bias")
    assert other.classifier.weight.shape == (5, 32)
