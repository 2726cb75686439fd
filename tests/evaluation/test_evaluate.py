"""`bertcli evaluate` through the front door."""

import json

import numpy as np
import pytest
from example_files import reviews, scored, several, written
from front import (
    bad,
    call,
    good,
    json_in,
)
from sentence_folders import saved, sentence_model

import bertcli
from bertcli.tasks.metrics import pearson


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a classifier of reviews and one of several labels."""
    folder = tmp_path_factory.mktemp("evaluate")
    made = {"one": reviews(100), "several": several(100)}
    for name, rows in made.items():
        file = written(folder / f"{name}.jsonl", rows)
        more = ["--steps", 60, "--learning-rate", 1e-2, "--threads", 1, "--device", "cpu"]
        assert call("train", file, "-o", folder / name, "--frozen", "-q", *more).code == 0
    return folder


def test_classes(place):
    rows = reviews(40, seed=7)
    file = written(place / "test.jsonl", rows)
    (found,) = good("evaluate", file, "-m", place / "one").rows
    texts = [row["text"] for row in rows]
    said = [row["label"] for row in good("classify", "-m", place / "one", "-q", *texts).rows]
    right = sum(one == row["label"] for one, row in zip(said, rows, strict=True))
    assert (found["task"], found["n"]) == ("classify", 40)
    assert found["accuracy"] == pytest.approx(right / 40)
    assert {"macro_f1", "micro_f1", "intervals", "confusion", "calibration"} < found.keys()
    low, high = found["intervals"]["accuracy"]
    assert low <= found["accuracy"] <= high
    assert sum(map(sum, found["confusion"])) == 40


def test_labels_that_the_model_lacks_are_counted(place):
    file = written(place / "odd.jsonl", [*reviews(39), {"text": "so so", "label": "neutral"}])
    done = call("evaluate", file, "-m", place / "one")
    assert done.code == 0
    assert done.rows[0]["accuracy"] <= 39 / 40


def test_what_is_truncated_is_told(place, tmp_path):
    rows = [*reviews(30), {**reviews(1)[0], "text": "good " * 300}]
    done = call("evaluate", written(tmp_path / "long.jsonl", rows), "-m", place / "one")
    assert done.err == "warning: 1 of 31 texts truncated to 256 tokens (46 dropped)\n"
    pairs = [{"text": "word " * 300, "pair": "a word", "score": n / 30} for n in range(30)]
    done = call("evaluate", written(tmp_path / "pairs.jsonl", pairs))
    assert done.err == "warning: 30 of 60 texts truncated to 256 tokens (1,380 dropped)\n"


def test_intervals_of_few_examples_are_called_narrow(place):
    for count in (1, 29, 30):
        file = written(place / "few.jsonl", reviews(count))
        done = call("evaluate", file, "-m", place / "one", "--compare", place / "one")
        said = f"warning: fewer than 30 examples ({count}): intervals of macro_f1, differences may "
        said += "be too narrow\n"
        assert done.code == 0 and done.err.count(said) == (count < 30)
        assert done.rows[0]["intervals"].keys() <= done.rows[0].keys()


def test_an_interval_is_no_point_where_all_examples_are_right(place):
    """The share of 100 of 100 is uncertain: 0.963 to 1 by Wilson's interval."""
    answers = good("classify", "-m", place / "one", "-i", place / "one.jsonl", "-q").rows
    texts = [row["text"] for row in reviews(100)]
    rows = [{"text": text, "label": row["label"]} for text, row in zip(texts, answers, strict=True)]
    file = written(place / "right.jsonl", rows)
    done = call("evaluate", file, "-m", place / "one")
    assert (done.code, done.err) == (0, "")
    (found,) = done.rows
    assert (found["accuracy"], found["macro_f1"]) == (1, 1)
    expected = [pytest.approx(0.963, abs=1e-3), 1]
    assert found["intervals"]["accuracy"] == found["intervals"]["micro_f1"] == expected
    low, high = found["intervals"]["macro_f1"]
    assert low < 0.97 and high == 1
    wrong = [{**row, "label": {"good": "bad", "bad": "good"}[row["label"]]} for row in rows]
    (found,) = good("evaluate", written(file, wrong), "-m", place / "one").rows
    assert found["intervals"]["accuracy"] == [0, pytest.approx(0.037, abs=1e-3)]


def test_several_labels(place):
    file = written(place / "many.jsonl", several(30, seed=5))
    (found,) = good("evaluate", file, "-m", place / "several").rows
    assert found["task"] == "multilabel" and found["micro_f1"] > 0.5


def test_pairs_with_scores_are_cosines_of_an_embedding_model(place):
    rows = scored(30)
    file = written(place / "pairs.jsonl", rows)
    (found,) = good("evaluate", file).rows
    assert (found["task"], found["n"]) == ("embed", 30)
    texts = [row["text"] for row in rows] + [row["pair"] for row in rows]
    vectors = [row["embedding"] for row in good("embed", "-q", *texts).rows]
    cosines = [
        sum(a * b for a, b in zip(vectors[at], vectors[30 + at], strict=True)) for at in range(30)
    ]
    expected = pearson(np.array([row["score"] for row in rows]), np.array(cosines))
    assert found["pearson"] == pytest.approx(expected, abs=1e-5)
    assert set(found["intervals"]) == {"spearman", "pearson", "mse", "mae"}


def test_two_models(place):
    file = written(place / "both.jsonl", reviews(30, seed=2))
    given = ["evaluate", file, "-m", place / "one", "--compare", place / "one"]
    (found,) = good(*given).rows
    assert found["compare"]["differences"]["accuracy"] == 0
    assert found["compare"]["intervals"]["accuracy"] == [0, 0]


def test_a_table_for_people(place):
    file = written(place / "shown.jsonl", reviews(32))
    shown = good("evaluate", file, "-m", place / "one", "-f", "table").out
    assert "classify, 32 examples" in shown and "95 % interval" in shown and "confusion" in shown


def judged_files(folder, queries, corpus, relevant):
    """Write a search with its judgements; return the options that name the files."""
    judged = "".join(f"{query} {key} 1\n" for query in relevant for key in relevant[query])
    (folder / "qrels.tsv").write_text(judged)
    files = [
        written(folder / f"{name}.jsonl", [{"_id": key, "text": texts[key]} for key in texts])
        for name, texts in (("queries", queries), ("corpus", corpus))
    ]
    return ["--queries", files[0], "--corpus", files[1], "--qrels", folder / "qrels.tsv"]


def search(folder, qrels):
    animals = ["a cat sleeps", "a dog barks", "stock markets fell", "rain is expected"]
    corpus = [{"_id": f"d{at}", "title": "", "text": text} for at, text in enumerate(animals)]
    queries = [{"_id": "q0", "text": "cats"}, {"_id": "q1", "text": "shares lost value"}]
    queries += [{"_id": "q2", "text": "nobody judged this"}]
    (folder / "qrels.tsv").write_text(qrels)
    return [
        *("--queries", written(folder / "q.jsonl", queries)),
        *("--corpus", written(folder / "c.jsonl", corpus)),
        *("--qrels", folder / "qrels.tsv"),
    ]


@pytest.mark.parametrize(
    "qrels",
    ["query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td2\t2\nq1\td3\t0\n", "q0 0 d0 1\nq1 0 d2 1\n"],
)
def test_a_search(qrels, tmp_path):
    done = call("evaluate", *search(tmp_path, qrels))
    assert done.code == 0
    names = ["ndcg@10", "recall@100", "mrr@10"]
    said = f"intervals of {', '.join(names)} may be too narrow"
    assert done.err == f"warning: fewer than 30 examples (2): {said}\n"
    (found,) = done.rows
    assert (found["task"], found["n"]) == ("retrieval", 2)
    assert [found[name] for name in names] == [1, 1, 1]
    for name in names:  # two queries prove little
        assert found["intervals"][name] == [pytest.approx(0.342, abs=1e-3), 1]


def test_a_search_from_python(tmp_path):
    files = search(tmp_path, "q0 0 d0 1\nq1 0 d2 1\n")
    options = {name[2:]: file for name, file in zip(files[::2], files[1::2], strict=True)}
    found = bertcli.evaluate(**options, device="cpu", quiet=True)
    (printed,) = good("evaluate", *files, "-q", BERTCLI_BACKEND="auto").rows
    assert found == printed
    for wrong, error in (
        ({**options, "file": "e.jsonl"}, "give either a file of examples, or queries"),
        ({}, "give either a file of examples, or queries"),
        ({"file": "e.jsonl", "task": "x"}, "unknown task 'x'"),
    ):
        with pytest.raises(bertcli.BertcliError, match=error):
            bertcli.evaluate(**wrong)


@pytest.mark.parametrize(
    ("qrels", "said"),
    [
        ("q0 d9 1\n", "document 'd9' is not in the corpus"),
        ("q9 d0 1\n", "none of its queries is in the file of queries"),
        ("q0 d0\n", "qrels.tsv:1: not a judgement"),
        ("q0 d0 inf\n", "qrels.tsv:1: not a judgement"),
        ("q0 d0 0\n", "no relevant documents found"),
    ],
)
def test_judgements_that_are_none(qrels, said, tmp_path):
    assert said in bad("evaluate", *search(tmp_path, qrels)).error


def test_wrong_usage(tmp_path):
    assert "nothing to evaluate" in bad("evaluate", code=2).error
    assert bad("evaluate", "--queries", "q", code=2).error == "--queries requires --qrels"
    file = written(tmp_path / "e.jsonl", [{"text": "a"}])
    assert "an example needs the fields" in bad("evaluate", file).error
    file = written(tmp_path / "l.jsonl", reviews(5))
    done = bad("evaluate", file)
    assert "BertForSequenceClassification" in done.error


def test_tags_and_answers(models, tmp_path):
    tagged = [
        {"words": ["Angela", "lives", "in", "Ouagadougou"], "tags": ["B-PER", "O", "O", "B-LOC"]}
    ]
    file = written(tmp_path / "tags.jsonl", tagged * 30)
    labels = {"id2label": {0: "O", 1: "B-PER", 2: "B-LOC"}}
    model = models("BertForTokenClassification", num_labels=3, **labels)
    (found,) = good("evaluate", file, "-m", model).rows
    assert found["task"] == "tag" and set(found["intervals"]) > {"precision", "recall", "f1"}
    asked = {"question": "Who?", "context": "Angela lives here.", "answer": "Angela", "start": 0}
    file = written(tmp_path / "answers.jsonl", [asked] * 30)
    (found,) = good("evaluate", file, "-m", models("BertForQuestionAnswering")).rows
    given = ["--question", "Who?", "--context", asked["context"]]
    (said,) = good("answer", "-m", models("BertForQuestionAnswering"), *given).rows
    assert found["task"] == "answer"
    assert found["exact_match"] == float(said["answer"] == "Angela")
    assert json.dumps(found)


@pytest.mark.parity
@pytest.mark.parametrize("options", [[], ["--prompt", "about: "], ["--prompt-name", "passage"]])
def test_a_search_has_the_prompts_that_sentence_transformers_gives_it(options, models, tmp_path):
    from sentence_transformers.sentence_transformer import modules as st
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    prompts = {"query": "query: ", "document": "", "passage": "the passage is "}
    theirs = sentence_model(st.Pooling(32), prompts=prompts)
    model = saved(theirs, tmp_path / "model")
    rows = reviews(60, seed=4)
    corpus = {f"d{at}": row["text"] for at, row in enumerate(rows[:40])}
    queries = {f"q{at}": row["text"] for at, row in enumerate(rows[40:])}
    relevant = {query: {f"d{at}", f"d{at + 9}"} for at, query in enumerate(queries)}
    given = judged_files(tmp_path, queries, corpus, relevant)
    done = call("evaluate", *given, "-m", model, *options)
    assert done.code == 0, done
    name, text = (options or ["", None])[0], (options or ["", None])[1]
    chosen = {"prompt": text if name == "--prompt" else None}
    chosen |= {"prompt_name": text if name == "--prompt-name" else None}
    sides = {f"{side}_{key}": chosen[key] for side in ("query", "corpus") for key in chosen}
    scores = InformationRetrievalEvaluator(queries, corpus, relevant, **sides)(theirs)
    for ours, key in (("ndcg@10", "cosine_ndcg@10"), ("mrr@10", "cosine_mrr@10")):
        assert done.rows[0][ours] == pytest.approx(scores[key], abs=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_a_search_ranks_as_the_model_compares(similarity, tmp_path):
    from sentence_transformers.sentence_transformer import modules as st
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.util import cos_sim, dot_score

    theirs = sentence_model(st.Pooling(32), similarity_fn_name=similarity)
    model = saved(theirs, tmp_path / "model")
    rows = [row["text"] * (1 + at % 5) for at, row in enumerate(reviews(60, seed=4))]
    corpus = {f"d{at}": text for at, text in enumerate(rows[:40])}
    queries = {f"q{at}": text for at, text in enumerate(rows[40:])}
    relevant = {query: {f"d{at}", f"d{at + 9}"} for at, query in enumerate(queries)}
    given = judged_files(tmp_path, queries, corpus, relevant)
    (found,) = call("evaluate", *given, "-m", model).rows
    both = {"score_functions": {"cosine": cos_sim, "dot": dot_score}}
    scores = InformationRetrievalEvaluator(queries, corpus, relevant, **both)(theirs)
    other = "cosine" if similarity == "dot" else "dot"
    assert found["ndcg@10"] == pytest.approx(scores[f"{similarity}_ndcg@10"], abs=1e-6)
    assert found["ndcg@10"] != pytest.approx(scores[f"{other}_ndcg@10"], abs=1e-6)


def test_integers_are_class_ids_of_a_model_without_names(models, tmp_path):
    model = models("BertForSequenceClassification", num_labels=3)
    texts = [row["text"] for row in reviews(30)]
    labels = [row["label"] for row in good("classify", "-m", model, "-q", *texts).rows]
    rows = [
        {"text": text, "label": int(label.removeprefix("LABEL_"))}
        for text, label in zip(texts, labels, strict=True)
    ]
    done = call("evaluate", written(tmp_path / "ids.jsonl", rows), "-m", model)
    assert done.rows[0]["accuracy"] == 1
    named = written(tmp_path / "named.jsonl", reviews(30))
    done = bad("evaluate", named, "-m", model)
    assert done.error == "no label of the examples is one of the model's: bad, good"
    assert done.hint == "the model has: LABEL_0, LABEL_1, LABEL_2"


def test_labels_that_a_model_lacks_count_as_scikit_learn_counts_them(place, tmp_path):
    theirs = pytest.importorskip("sklearn.metrics")
    rows = reviews(30, seed=3)
    rows = [{**row, "label": "odd"} if at % 5 == 0 else row for at, row in enumerate(rows)]
    done = call("evaluate", written(tmp_path / "one.jsonl", rows), "-m", place / "one")
    texts, truth = [row["text"] for row in rows], [row["label"] for row in rows]
    labels = [row["label"] for row in good("classify", "-m", place / "one", "-q", *texts).rows]
    (report,) = done.rows
    assert report["macro_f1"] == pytest.approx(theirs.f1_score(truth, labels, average="macro"))
    assert report["labels"] == ["bad", "good", "odd"] and sum(map(sum, report["confusion"])) == 30
    rows = [{"text": row["text"], "labels": ["odd", *row["labels"]]} for row in several(30, seed=5)]
    done = call("evaluate", written(tmp_path / "m.jsonl", rows), "-m", place / "several")
    assert done.rows[0]["accuracy"] == 0 and done.rows[0]["micro_f1"] < 0.7


@pytest.mark.parametrize("answers", [["Angela", ""], ["Angela", "lives"]])
def test_a_question_may_have_no_answer_where_an_example_has_none(answers, models, tmp_path):
    """As in the log of training, on the same file and weights."""
    context = "Angela lives here."
    rows = [{"question": "Who?", "context": context, "answer": answers[at % 2]} for at in range(40)]
    file = written(tmp_path / "answers.jsonl", rows)
    more = ["--eval", file, "--steps", 6, "--eval-every", 6, "-q", "--device", "cpu"]
    model = models("BertForQuestionAnswering")
    assert call("train", file, "-o", tmp_path / "out", "-m", model, *more).code == 0
    logged = json_in(tmp_path / "out" / "manifest.json")["metrics"]
    (report,) = good("evaluate", file, "-m", tmp_path / "out").rows
    assert report["exact_match"] == logged["exact_match"]
    assert report["f1"] == pytest.approx(logged["f1"])
