"""Metrics equal those of the libraries that everybody quotes, or of a literal count."""

import numpy as np
import pytest

from bertcli.evaluation.answers import overlap
from bertcli.evaluation.bootstrap import intervals
from bertcli.evaluation.classes import ClassPredictions, LabelPredictions
from bertcli.evaluation.entities import TagPredictions, entities
from bertcli.evaluation.retrieval import judged, nearest
from bertcli.evaluation.scores import pearson, ranks, spearman

DRAW = np.random.default_rng(3)


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_are_those_of_scikit_learn(classes):
    theirs = pytest.importorskip("sklearn.metrics")
    truth = DRAW.integers(0, classes, 200)
    scores = DRAW.random((200, classes)) + 0.4 * np.eye(classes)[truth]
    found = ClassPredictions(truth, scores)
    numbers, said = found.metrics(), found.predicted
    assert numbers["accuracy"] == pytest.approx(theirs.accuracy_score(truth, said))
    assert numbers["macro_f1"] == pytest.approx(theirs.f1_score(truth, said, average="macro"))
    assert numbers["micro_f1"] == pytest.approx(theirs.f1_score(truth, said, average="micro"))
    assert (found.confusion()[:-1] == theirs.confusion_matrix(truth, said)).all()


def test_several_labels_are_those_of_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics")
    truth, said = DRAW.random((100, 4)) < 0.4, DRAW.random((100, 4)) < 0.5
    numbers = LabelPredictions(truth, said).metrics()
    assert numbers["accuracy"] == pytest.approx(theirs.accuracy_score(truth, said))
    for name in ("macro", "micro"):
        expected = theirs.f1_score(truth, said, average=name)
        assert numbers[f"{name}_f1"] == pytest.approx(expected)


def test_a_label_that_the_model_lacks_counts_as_wrong():
    found = ClassPredictions(np.array([0, 1, -1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
    assert found.metrics()["accuracy"] == pytest.approx(2 / 3)


def test_calibration_by_hand():
    scores = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    found = ClassPredictions(np.array([0, 1, 1]), scores).calibration()
    assert found["error"] == pytest.approx((2 * abs(0.9 - 0.5) + abs(0.6 - 1)) / 3)


def test_correlations_are_those_of_scipy():
    theirs = pytest.importorskip("scipy.stats")
    one = DRAW.integers(0, 20, 300).astype(float)  # with ties
    other = one + DRAW.normal(0, 5, 300)
    assert spearman(one, other) == pytest.approx(theirs.spearmanr(one, other).statistic)
    assert pearson(one, other) == pytest.approx(theirs.pearsonr(one, other).statistic)
    np.testing.assert_allclose(ranks(one), theirs.rankdata(one))
    assert spearman(one, np.ones(300)) == 0.0


# The counts that seqeval 1.2 gives for each of these, of entities right, true and said.
TAGS = [
    (["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "I-PER", "O", "B-LOC"], (2, 2, 2)),
    (["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O", "O", "B-LOC"], (1, 2, 2)),
    (["I-PER", "I-PER", "I-LOC"], ["B-PER", "I-PER", "B-LOC"], (2, 2, 2)),
    (["B-PER", "B-PER"], ["B-PER", "I-PER"], (0, 2, 1)),
    (["O", "I-LOC", "O"], ["O", "O", "O"], (0, 1, 0)),
    (["S-ORG", "B-PER", "E-PER"], ["S-ORG", "B-PER", "I-PER"], (2, 2, 2)),
]


@pytest.mark.parametrize(("truth", "said", "counts"), TAGS)
def test_entities_are_counted_as_seqeval_counts_them(truth, said, counts):
    found = TagPredictions([truth], [said])
    assert tuple(found.counts.sum((0, 2))) == counts
    right, true, guessed = counts
    assert found.metrics()["f1"] == pytest.approx(2 * right / (true + guessed))


def test_entities_have_their_words():
    tags = ["B-PER", "I-PER", "O", "B-LOC", "I-PER"]
    assert [*entities(tags)] == [("PER", 0, 1), ("LOC", 3, 3), ("PER", 4, 4)]


def test_answers_are_compared_as_squad_compares_them():
    assert overlap("The Eiffel Tower!", "eiffel tower") == (1.0, 1.0)
    assert overlap("in the Eiffel Tower", "Eiffel Tower") == (0.0, pytest.approx(0.8))
    assert overlap("", "") == (1.0, 1.0) and overlap("", "Paris") == (0.0, 0.0)


def test_search_by_hand():
    ndcg, recall, rank = judged(["x", "b", "a"], {"a": 2.0, "b": 1.0, "c": 1.0})
    gained = 1 / np.log2(3) + 2 / np.log2(4)
    ideal = 2 / np.log2(2) + 1 / np.log2(3) + 1 / np.log2(4)
    assert ndcg == pytest.approx(gained / ideal)
    assert (recall, rank) == (pytest.approx(2 / 3), 0.5)
    assert judged(["x"] * 10 + ["a"], {"a": 1.0}) == (0.0, 1.0, 0.0)


def test_a_query_does_not_find_itself():
    vectors = np.eye(3)
    found = [*nearest(vectors[:1], vectors, (["a"], ["a", "b", "c"]))]
    assert found == [["b", "c"]]


def test_intervals_hold_the_metric():
    truth = DRAW.integers(0, 2, 400)
    scores = np.eye(2)[np.where(DRAW.random(400) < 0.8, truth, 1 - truth)]
    found = ClassPredictions(truth, scores)
    low, high = intervals(found.metrics, 400)["accuracy"]
    accuracy = found.metrics()["accuracy"]
    assert low < accuracy < high
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(accuracy * (1 - accuracy) / 400), rel=0.2)
    assert intervals(found.metrics, 400)["accuracy"] == [low, high]  # the same each time
