"""`bertcli classify`, `next-sentence` and `choose` against transformers and CrossEncoder."""

import shutil

import pytest
import torch
import transformers
from front import (
    bad,
    call,
    good,
    json_in,
    jsonl,
    put_json,
)
from sentence_transformers import CrossEncoder
from task_models import LENGTH, agree, labels, texts, tokenizer

pytestmark = pytest.mark.parity

CLASSIFIER = "BertForSequenceClassification"
THREE = labels("bad", "so so", "good")
SEVERAL = {"problem_type": "multi_label_classification", **labels("a", "b", "c", "d")}
PAIRS = [(one, two) for one, two in zip(texts(), texts(seed=6), strict=True) if one and two]


def logits(models, name, pairs, **changes):
    """Return their logits, each pair or text on its own."""
    model = models.theirs(name, **changes)
    given = [(text,) if isinstance(text, str) else text for text in pairs]
    with torch.no_grad():
        found = [
            model(**tokenizer()(*one, return_tensors="pt", truncation=True)).logits[0]
            for one in given
        ]
    return torch.stack(found)


def pairs_file(place):
    path = place / "pairs.jsonl"
    lines = [{"text": one, "pair": two} for one, two in PAIRS]
    path.write_text(jsonl(lines))
    return path


# --- classify -----------------------------------------------------------------------------------


def pipeline(models, **changes):
    theirs = models.theirs(CLASSIFIER, **changes)
    return transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer())


@pytest.mark.parametrize("top_k", [None, 1, 2, 9])
def test_labels_are_those_of_the_pipeline(models, top_k):
    theirs = pipeline(models, **THREE)
    more = {} if top_k is None else {"top_k": top_k}
    options = [] if top_k is None else ["--top-k", top_k]
    found = texts()
    done = call("classify", *found, "-m", models(CLASSIFIER, **THREE), *options, "-q")
    assert {row["label"] for row in done.rows if "label" in row} <= {"bad", "so so", "good"}
    for number, (text, row) in enumerate(zip(found, done.rows, strict=True)):
        row.pop("truncated", None)
        assert row.pop("id") == number
        expected = theirs(text, truncation=True, **more)
        agree(row if top_k is None else row["labels"], expected if top_k else expected[0], text)


def test_all_scores_and_logits(models):
    folder, expected = models(CLASSIFIER, **THREE), logits(models, CLASSIFIER, texts(), **THREE)
    for options, scores in (([], expected.softmax(-1)), (["--logits"], expected)):
        rows = call("classify", *texts(), "-m", folder, "--scores", "all", "-q", *options).rows
        wanted = [dict(zip(("bad", "so so", "good"), one, strict=True)) for one in scores.tolist()]
        agree([row["scores"] for row in rows], wanted)
        agree([row["score"] for row in rows], scores.max(-1).values.tolist())


def test_pairs_and_threshold(models, tmp_path):
    folder = models(CLASSIFIER, **THREE)
    expected = logits(models, CLASSIFIER, PAIRS, **THREE).softmax(-1)
    path = pairs_file(tmp_path)
    for option in ("--pairs", "-i"):
        rows = call("classify", option, path, "-m", folder, "--threshold", 0.3, "-q").rows
        for row, scores in zip(rows, expected, strict=True):
            kept = sorted((score for score in scores.tolist() if score >= 0.3), reverse=True)
            agree([one["score"] for one in row["labels"]], kept)


def test_token_types_are_given_where_the_folder_names_them(models, tmp_path):
    """Not where model_input_names lacks them, whatever the tokenizer puts around a pair."""
    folder = shutil.copytree(models(CLASSIFIER, num_labels=1), tmp_path / "m")
    settings = json_in(folder / "tokenizer_config.json")
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    put_json(folder / "tokenizer_config.json", settings)
    theirs = CrossEncoder(str(folder), max_length=LENGTH, device="cpu")
    for copies in (1, 12):  # few records, and many as arrays
        path = tmp_path / f"{copies}.jsonl"
        path.write_text(pairs_file(tmp_path).read_text() * copies)
        rows = good("classify", "--pairs", path, "-m", folder, "-q").rows
        agree([row["score"] for row in rows], theirs.predict(PAIRS).astype(float).tolist() * copies)
    (row,) = good("embed", "a b", "--pair", "c", "-m", folder, "-q").rows
    given = transformers.AutoTokenizer.from_pretrained(folder)("a b", "c", return_tensors="pt")
    with torch.no_grad():
        states = models.theirs(CLASSIFIER, num_labels=1).bert(**given).last_hidden_state
    agree(row["embedding"], states[0].mean(0).tolist())


def test_several_labels_may_hold(models):
    folder, expected = models(CLASSIFIER, **SEVERAL), pipeline(models, **SEVERAL)
    rows = call("classify", *texts(), "-m", folder, "-q").rows
    counts = set()
    for text, row in zip(texts(), rows, strict=True):
        every = expected(text, truncation=True, top_k=None)
        agree(row["labels"], [one for one in every if one["score"] >= 0.5])
        counts.add(len(row["labels"]))
    assert len(counts) > 1
    assert call("classify", "a", "-m", folder, "--scores", "all").rows[0]["scores"].keys() == {
        *"abcd"
    }


@pytest.mark.parametrize(
    ("more", "function"),
    [
        ({}, torch.sigmoid),
        ({"problem_type": "regression"}, lambda x: x),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda x: x),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            lambda x: x,
        ),
        (
            {
                "problem_type": "regression",
                "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
            },
            torch.sigmoid,
        ),
    ],
)
def test_one_label_is_one_score(models, tmp_path, more, function):
    changes = {"num_labels": 1, **more}
    expected = logits(models, CLASSIFIER, PAIRS, **changes)[:, 0]
    argv = ["classify", "--pairs", pairs_file(tmp_path), "-m", models(CLASSIFIER, **changes), "-q"]
    scored = [row["score"] for row in good(*argv).rows]
    agree(scored, function(expected).tolist())
    agree([row["score"] for row in good(*argv, "--logits").rows], expected.tolist())
    if "problem_type" not in more:
        theirs = CrossEncoder(str(models(CLASSIFIER, **changes)), max_length=LENGTH, device="cpu")
        agree(scored, theirs.predict(PAIRS).astype(float).tolist())


def test_a_saved_cross_encoder_scores_as_it_was_set(models, tmp_path):
    model = CrossEncoder(str(models(CLASSIFIER, num_labels=1)), max_length=LENGTH, device="cpu")
    model.activation_fn = torch.nn.Identity()
    model.save_pretrained(str(tmp_path / "saved"))
    rows = good("classify", "--pairs", pairs_file(tmp_path), "-m", tmp_path / "saved", "-q").rows
    expected = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    agree([row["score"] for row in rows], expected.astype(float).tolist())
    assert min(row["score"] for row in rows) < 0


def test_the_default_prompt_of_a_cross_encoder_is_before_each_text(models, tmp_path):
    folder, prompts = str(models(CLASSIFIER, num_labels=1)), {"query": "find this: ", "other": "x "}
    options = {"prompts": prompts, "default_prompt_name": "query", "device": "cpu"}
    options["activation_fn"] = torch.nn.Identity()
    CrossEncoder(folder, max_length=LENGTH, **options).save_pretrained(str(tmp_path))
    theirs = CrossEncoder(str(tmp_path), device="cpu")
    assert abs(theirs.predict(PAIRS) - theirs.predict(PAIRS, prompt="")).max() > 0.01
    rows = good("classify", "--pairs", pairs_file(tmp_path), "-m", tmp_path, "-q").rows
    agree([row["score"] for row in rows], theirs.predict(PAIRS).astype(float).tolist())
    assert [row.get("text") for row in rows] == [None] * len(rows)
    found = good("rerank", "what is love", "a", "b c", "-m", tmp_path, "-q").rows
    expected = theirs.rank("what is love", ["a", "b c"])
    agree([row["score"] for row in found], [float(row["score"]) for row in expected])


def test_an_unknown_activation_is_said(models):
    changes = {"num_labels": 1, "sbert_ce_default_activation_function": "my.own.Swish"}
    done = call("classify", "a", "-m", models(CLASSIFIER, **changes))
    assert done.err.startswith("warning: the activation my.own.Swish")
    agree(done.rows[0]["score"], logits(models, CLASSIFIER, ["a"], **changes).sigmoid().item())


def test_scores_all_leaves_nothing_out(models):
    argv = ["classify", "a", "-m", models(CLASSIFIER, **THREE), "--scores", "all", "--top-k", 2]
    assert "--scores all cannot be combined" in bad(*argv, code=2).error


# --- next-sentence ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BertForNextSentencePrediction", "BertForPreTraining"])
def test_the_next_sentence(models, tmp_path, name):
    model = transformers.BertForNextSentencePrediction.from_pretrained(models(name)).eval()
    rows = good("next-sentence", "--pairs", pairs_file(tmp_path), "-m", models(name), "-q").rows
    for (one, two), row in zip(PAIRS, rows, strict=True):
        given = tokenizer()(one, two, return_tensors="pt", truncation=True)
        with torch.no_grad():
            follows, random = model(**given).logits[0].softmax(-1).tolist()
        row.pop("truncated", None)
        row.pop("id")
        agree(row, {"is_next": follows, "not_next": random})
    alone = good("next-sentence", *PAIRS[0], "-m", models(name), "-q").rows
    agree(alone[0]["is_next"], rows[0]["is_next"])
    argv = ["next-sentence", PAIRS[0][0], "--pair", PAIRS[0][1], "-m", models(name), "-q"]
    agree(good(*argv).rows, alone)


def test_it_takes_two_sentences(models, tmp_path):
    argv = ["-m", models("BertForNextSentencePrediction")]
    assert "takes two sentences, not 1" in bad("next-sentence", "a", *argv, code=2).error
    assert "takes two sentences, not 3" in bad("next-sentence", *"abc", *argv, code=2).error
    assert bad("next-sentence", *argv, stdin="a\n").error.startswith(
        "stdin:1: 1 column, but a pair"
    )
    given = '{"text": "a"}\n{"text": "a", "pair": "b"}\n'
    path = tmp_path / "some.jsonl"
    path.write_text(given)
    done = call("next-sentence", "-i", path, "--on-error", "skip", *argv)
    assert (done.code, len(done.rows)) == (1, 1)


# --- choose -------------------------------------------------------------------------------------


def choices(number):
    return [text for text in texts(4, 8, seed=number) if text][: 2 + number % 3]


def expected_choices(models, prompt, several):
    model = models.theirs("BertForMultipleChoice")
    given = tokenizer()(
        [prompt] * len(several), several, return_tensors="pt", padding=True, truncation=True
    )
    with torch.no_grad():
        return model(**{key: it[None] for key, it in given.items()}).logits[0].softmax(-1).tolist()


def test_choices(models, tmp_path):
    asked = [{"id": n, "prompt": one, "choices": choices(n)} for n, (one, _) in enumerate(PAIRS)]
    path = tmp_path / "asked.jsonl"
    path.write_text(jsonl(asked))
    folder = models("BertForMultipleChoice")
    piped = good("choose", "-m", folder, "-q", stdin=path.read_bytes()).rows
    small = good("choose", "-i", path, "-m", folder, "-q", "--window", 2, "--batch-tokens", 8).rows
    agree(small, piped)
    for line, row in zip(asked, piped, strict=True):
        scores = expected_choices(models, line["prompt"], line["choices"])
        agree([one["score"] for one in row["choices"]], scores)
        assert [one["choice"] for one in row["choices"]] == line["choices"]
        assert (row["id"], row["best"]) == (line["id"], scores.index(max(scores)))
    first = good("choose", asked[0]["prompt"], *asked[0]["choices"], "-m", folder, "-q").rows
    agree(first[0]["choices"], piped[0]["choices"])


def test_a_prompt_with_two_truncated_choices_is_one_truncated_text(models):
    argv = ("choose", "a", "one " * 30, "two " * 30, "-m", models("BertForMultipleChoice"))
    assert "1 of 1 texts truncated to 8 tokens" in call(*argv, "--max-length", 8).err


def test_choices_that_are_none(models):
    folder = models("BertForMultipleChoice")
    said = "choose needs a prompt and at least two choices"
    assert bad("choose", "a", "b", "-m", folder, code=2).error == said
    for line, said in (
        ('{"prompt": "a", "choices": "b"}', "stdin:1: 'choices' is not a list of texts"),
        ('{"prompt": "a", "choices": ["b"]}', "stdin:1: at least two choices needed, found 1"),
        ('{"prompt": "a"}', "stdin:1: field 'choices' not found"),
    ):
        assert said in bad("choose", "-m", folder, stdin=line).error
    given = '{"prompt": "a", "choices": ["b"]}\n{"prompt": "a", "choices": ["b", "c"]}\n'
    done = call("choose", "-m", folder, "--on-error", "skip", stdin=given)
    assert (done.code, len(done.rows)) == (1, 1)
