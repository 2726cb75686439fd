"""Metrics equal those of the libraries that everybody quotes, or of a literal count."""

import random
import warnings

import numpy as np
import pytest

from bertcli.evaluation.report import (
    intervals,
    report,
    search_scores,
    wilson_interval,
)
from bertcli.tasks.learning import Evaluation
from bertcli.tasks.metrics import (
    ClassPredictions,
    LabelPredictions,
    TagPredictions,
    answer_overlap,
    calibration,
    pearson,
    ranks,
    spearman,
)

DRAW = np.random.default_rng(3)


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_are_those_of_scikit_learn(classes):
    theirs = pytest.importorskip("sklearn.metrics")
    truth = DRAW.integers(0, classes, 200)
    said = (DRAW.random((200, classes)) + 0.4 * np.eye(classes)[truth]).argmax(-1)
    found = ClassPredictions(truth, said, classes)
    numbers = found.metrics()
    assert numbers["accuracy"] == pytest.approx(theirs.accuracy_score(truth, said))
    assert numbers["macro_f1"] == pytest.approx(theirs.f1_score(truth, said, average="macro"))
    assert numbers["micro_f1"] == pytest.approx(theirs.f1_score(truth, said, average="micro"))
    assert (found.confusion() == theirs.confusion_matrix(truth, said)).all()


def test_several_labels_are_those_of_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics")
    truth, said = DRAW.random((100, 4)) < 0.4, DRAW.random((100, 4)) < 0.5
    numbers = LabelPredictions(truth, said).metrics()
    assert numbers["accuracy"] == pytest.approx(theirs.accuracy_score(truth, said))
    for name in ("macro", "micro"):
        expected = theirs.f1_score(truth, said, average=name)
        assert numbers[f"{name}_f1"] == pytest.approx(expected)


def test_calibration_by_hand():
    scores = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    found = calibration(scores, scores.argmax(-1) == [0, 1, 1])
    assert found["error"] == pytest.approx((2 * abs(0.9 - 0.5) + abs(0.6 - 1)) / 3)
    assert [one["n"] for one in found["bins"]] == [1, 2]


def test_correlations_are_those_of_scipy():
    theirs = pytest.importorskip("scipy.stats")
    one = DRAW.integers(0, 20, 300).astype(float)  # with ties
    other = one + DRAW.normal(0, 5, 300)
    assert spearman(one, other) == pytest.approx(theirs.spearmanr(one, other).statistic)
    assert pearson(one, other) == pytest.approx(theirs.pearsonr(one, other).statistic)
    np.testing.assert_allclose(ranks(one), theirs.rankdata(one))
    assert spearman(one, np.ones(300)) == 0.0


SCHEMES = {
    "iob": ["O", "B-A", "I-A", "B-B", "I-B"],
    "bioes": ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B"],
    "bare": ["O", "PER", "LOC", "ORG", "B-", "B", "B-LOC"],
    "wild": ["O", "B-A", "I-A", "B-B-x", "I-B-x", "S-A", "E-B", "B", "I"],
}


@pytest.mark.parity
@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_are_those_of_seqeval(scheme):
    """In predictions drawn at random, of tags that follow no rule."""
    theirs, draw = pytest.importorskip("seqeval.metrics"), random.Random(0)
    tags = SCHEMES[scheme]
    for _ in range(100):
        lengths = [draw.randint(1, 12) for _ in range(draw.randint(1, 6))]
        truth = [draw.choices(tags, k=length) for length in lengths]
        said = [[draw.choice([one, draw.choice(tags)]) for one in row] for row in truth]
        found = TagPredictions(truth, said).metrics()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is nothing to divide by
            expected = {
                "precision": theirs.precision_score(truth, said),
                "recall": theirs.recall_score(truth, said),
                "f1": theirs.f1_score(truth, said),
                "accuracy": theirs.accuracy_score(truth, said),
            }
        expected = {name: float(np.nan_to_num(one)) for name, one in expected.items()}
        assert found == pytest.approx(expected), (truth, said)


def test_answers_are_compared_as_squad_compares_them():
    assert answer_overlap("The Eiffel Tower!", "eiffel tower") == (1.0, 1.0)
    assert answer_overlap("in the Eiffel Tower", "Eiffel Tower") == (0.0, pytest.approx(0.8))
    assert answer_overlap("", "") == (1.0, 1.0) and answer_overlap("", "Paris") == (0.0, 0.0)


def test_search_by_hand():
    ndcg, recall, rank = search_scores(["x", "b", "a"], {"a": 2.0, "b": 1.0, "c": 1.0})
    gained = 1 / np.log2(3) + 2 / np.log2(4)
    ideal = 2 / np.log2(2) + 1 / np.log2(3) + 1 / np.log2(4)
    assert ndcg == pytest.approx(gained / ideal)
    assert (recall, rank) == (pytest.approx(2 / 3), 0.5)
    assert search_scores(["x"] * 10 + ["a"], {"a": 1.0}) == (0.0, 1.0, 0.0)


def test_intervals_hold_the_metric():
    truth = DRAW.integers(0, 2, 400)
    said = np.where(DRAW.random(400) < 0.8, truth, 1 - truth)
    found = report(Evaluation("classify", 400, ClassPredictions(truth, said, 2)))
    (low, high), accuracy = found["intervals"]["accuracy"], found["accuracy"]
    assert low < accuracy < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(accuracy * (1 - accuracy) / 400), rel=0.2)
    assert report(Evaluation("classify", 400, ClassPredictions(truth, said, 2))) == found


def test_intervals_of_shares_are_those_of_scipy():
    scipy = pytest.importorskip("scipy.stats")
    for right, count in [(0, 1), (1, 1), (100, 100), (0, 100), (37, 61), (499, 500)]:
        theirs = scipy.binomtest(right, count).proportion_ci(method="wilson")
        ours = wilson_interval(right / count, count)
        assert ours == pytest.approx([theirs.low, theirs.high], abs=1e-6)
    assert wilson_interval(0.0, 0) == [0, 1]


def test_a_macro_average_of_a_rare_class_is_uncertain():
    """98 examples of one class and 2 of another weigh as 8 examples of two equal classes."""
    truth = np.array([0] * 98 + [1] * 2)
    found = intervals(ClassPredictions(truth, truth, 2), 100)
    assert found["accuracy"] == wilson_interval(1, 100)
    assert found["macro_f1"] == wilson_interval(1, 4 / (1 / 98 + 1 / 2))


def test_entities_that_are_all_found_rest_on_the_sentences_that_have_any():
    tags = [["B-PER", "O"]] * 3 + [["O", "O"]] * 97
    found = intervals(TagPredictions(tags, tags), 100)
    assert found["f1"] == found["precision"] == found["recall"] == wilson_interval(1, 3)
    assert found["accuracy"] == wilson_interval(1, 100)
    none = intervals(TagPredictions([["O"]], [["O"]]), 1)
    assert none["precision"] == [0, 1]
