"""`bertcli classify --labels` against transformers' zero-shot-classification pipeline."""

import csv
import io

import pytest
import transformers
from front import bad, call, good, jsonl, struck
from model_reference import randomise
from task_models import LENGTH, agree, labels, texts, tokenizer
from tokenizers_made import MADE

import bertcli

pytestmark = pytest.mark.parity

CLASSIFIER = "BertForSequenceClassification"
ORDERS = (
    ("contradiction", "neutral", "entailment"),
    ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
    ("contradiction", "Entailment", "neutral"),
    ("neutral", "entailment", "contradiction"),
    ("entailment", "not_entailment"),
    ("not_entailment", "entailment"),
)
TOPICS = ("sport", "politics", "the capital of France", "naïve 😀")
LABELS = ("--labels", ",".join(TOPICS))
GIVEN = [text for text in texts(12, 60) if text]


def pipeline(model, reader):
    return transformers.pipeline("zero-shot-classification", model=model, tokenizer=reader)


def ranked(found):
    """Return the labels of the pipeline as `--top-k` lists them."""
    pairs = zip(found["labels"], found["scores"], strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


@pytest.mark.parametrize("names", ORDERS)
@pytest.mark.parametrize("several", [False, True])
def test_scores_are_those_of_the_pipeline(models, names, several, engine):
    """With entailment in any place."""
    theirs = pipeline(models.theirs(CLASSIFIER, **labels(*names)), tokenizer())
    argv = ["classify", *GIVEN, "-m", models(CLASSIFIER, **labels(*names)), "-q", *LABELS]
    argv += ["--multi-label"] * several
    rows = good(*argv, "--top-k", len(TOPICS)).rows
    for text, row in zip(GIVEN, rows, strict=True):
        expected = ranked(theirs(text, candidate_labels=[*TOPICS], multi_label=several))
        agree(row["labels"], expected, text)


@pytest.mark.parametrize("options", [{}, {"hypothesis_template": "It is about {}!"}])
@pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert", "deberta"])
def test_other_families_and_templates(tmp_path, family, options):
    folder = MADE[family](tmp_path / "m")
    prefix = {"deberta": "DebertaV2", "modernbert": "ModernBert", "distilbert": "DistilBert"}
    prefix = prefix.get(family, family.title())
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if family == "distilbert":
        sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
    config = getattr(transformers, f"{prefix}Config")(
        **sizes, **labels(*ORDERS[1]), vocab_size=2000, intermediate_size=16, pad_token_id=1
    )
    model = getattr(transformers, f"{prefix}ForSequenceClassification")(config).eval()
    randomise(model, seed=5)
    model.save_pretrained(folder)
    theirs = pipeline(model, transformers.AutoTokenizer.from_pretrained(folder))
    argv = ["classify", *GIVEN[:6], "-m", folder, "-q", *LABELS, "--scores", "all"]
    argv += ["--hypothesis", *options.values()] if options else []
    for text, row in zip(GIVEN, good(*argv).rows, strict=False):
        expected = theirs(text, candidate_labels=[*TOPICS], **options)
        assert row["label"] == expected["labels"][0]
        agree(row["score"], expected["scores"][0], text)
        scores = dict(zip(expected["labels"], expected["scores"], strict=True))
        agree(row["scores"], {label: scores[label] for label in TOPICS}, text)


@pytest.fixture
def nli(models):
    return models(CLASSIFIER, **labels(*ORDERS[2]))


def test_one_label_is_scored_against_its_contradiction(models, nli):
    theirs = pipeline(models.theirs(CLASSIFIER, **labels(*ORDERS[2])), tokenizer())
    (row,) = good("classify", GIVEN[0], "-m", nli, "-q", "--labels", "sport").rows
    expected = theirs(GIVEN[0], candidate_labels=["sport"])
    assert row["label"] == "sport"
    agree(row["score"], expected["scores"][0])


def test_labels_that_may_all_be_true(nli):
    argv = ("classify", *GIVEN, "-m", nli, "-q", *LABELS, "--multi-label")
    every = good(*argv, "--scores", "all").rows
    for row, scored in zip(good(*argv).rows, every, strict=True):
        likely = sorted((s for s in scored["scores"].values() if s >= 0.5), reverse=True)
        assert [one["score"] for one in row["labels"]] == likely
    few = good(*argv, "--threshold", 0.9).rows
    assert sum(len(row["labels"]) for row in few) < sum(len(row["scores"]) for row in every)


def test_a_label_with_commas(nli):
    argv = ("classify", "one", "-m", nli, "-q", "--scores", "all")
    (row,) = good(*argv, "--labels", " a , b,", "--label", "c, d", "--label", "e").rows
    assert list(row["scores"]) == ["a", "b", "c, d", "e"]
    (row,) = good(*argv, "--label", "c, d", "--label", "e").rows
    assert list(row["scores"]) == ["c, d", "e"]


def test_only_the_text_is_truncated(nli):
    long = "one " * 100
    done = call("classify", long, "two", "-m", nli, *LABELS)
    assert f"warning: 1 of 2 texts truncated to {LENGTH} tokens" in done.err
    assert [bool(row.get("truncated")) for row in done.rows] == [True, False]
    error = bad("classify", "a", "-m", nli, "--labels", f"a,{'b ' * LENGTH}", code=2).error
    assert f"tokens, and a pair {LENGTH - 3}" in error


def test_files_formats_and_resume(nli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"i{n}", "text": text, "pair": "x"} for n, text in enumerate(texts(300, 9))]
    (tmp_path / "in.jsonl").write_text(jsonl(rows))
    argv = ("classify", "-i", "in.jsonl", "-m", nli, "-q", "--labels", "a,b", "--keep-fields")
    found = good(*argv).rows
    assert [(row["id"], row["pair"]) for row in found] == [(row["id"], "x") for row in rows]
    for number in (0, 150, 299):
        text = rows[number]["text"]
        (alone,) = good("classify", text, "-m", nli, "-q", "--labels", "a,b").rows
        agree(
            {name: found[number][name] for name in ("label", "score")},
            {name: alone[name] for name in ("label", "score")},
        )
    small = good(*argv, "--window", 2, "--batch-tokens", 8).rows
    agree(small, found)
    table = [*csv.DictReader(io.StringIO(good(*argv, "-f", "csv").out))]
    assert [row["label"] for row in table] == [row["label"] for row in found]
    (tmp_path / "none.txt").touch()
    empty = call("classify", "-i", "none.txt", "-m", nli, "-q", "--labels", "a,b", "-f", "csv")
    assert empty.out == "id,label,score,truncated\n"


@pytest.mark.usefixtures("usual_engine")
def test_a_killed_run_goes_on_and_has_the_same_bytes(nli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(jsonl({"text": text} for text in texts(900, 9)))
    argv = ("classify", "-i", "in.jsonl", "-m", nli, "-q", "--labels", "a,b")
    again = (*argv, "-o", "out.csv", "--resume")
    assert struck("SIGKILL", *again, journals=1) == -9
    assert 'options.labels was "a,b", now "a,c"' in bad(*again, "--labels", "a,c").error
    good(*again)
    good(*argv, "-o", "whole.csv")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_what_cannot_be(models, nli):
    argv = ("classify", "a", "-m", nli)
    for options, error in (
        (["--labels", ","], "--labels names no label"),
        (["--labels", "a,b,a"], "--labels has the label 'a' twice"),
        (["--labels", "\udcff"], "is not text"),
        (
            ["--labels", "a", "--hypothesis", "It is."],
            "--hypothesis It is. has no {} for the label",
        ),
        (["--labels", "a", "--logits"], "--labels cannot be combined with --logits"),
        (["--label", "a", "--pair", "b"], "--label cannot be combined with --pair"),
        (
            ["--labels", "a", "--pre-split"],
            "cannot be combined with --pair, --pairs or --pre-split",
        ),
        (["--multi-label"], "--multi-label requires --labels or --label"),
        (["--hypothesis", "{}"], "--hypothesis requires --labels or --label"),
        (["--labels", "a", "--scores", "all", "--top-k", 1], "--scores all cannot be combined"),
    ):
        assert error in bad(*argv, *options, code=2).error
    other = models(CLASSIFIER, **labels("bad", "good"))
    refused = bad("classify", "a", "-m", other, "--labels", "a,b")
    assert refused.error == f"{other}: no label means entailment: bad, good"
    assert "cross-encoder/nli-deberta-v3-small" in refused.hint
    none = bad("classify", "a", "--labels", "a,b", code=2)
    assert "classify --labels needs a model of natural language inference" in none.error
    pair = '{"text": "a", "second": "b"}\n'
    given_pair = ("classify", "-m", nli, "-q", "--labels", "a,b", "--pair-field", "second")
    assert "stdin:1: not a single text" in bad(*given_pair, stdin=pair).error


def test_a_class_gives_the_rows_of_the_command(nli):
    model = bertcli.ZeroShotClassifier.load(nli, backend="torch")
    rows = good("classify", *GIVEN[:3], "-m", nli, "-q", *LABELS).rows
    found = model(GIVEN[:3], [*TOPICS])
    agree([row | {"id": n} for n, row in enumerate(found)], rows)
    agree(model(GIVEN[0], labels=",".join(TOPICS)), rows[0])
    rows = good("classify", GIVEN[0], "-m", nli, "-q", *LABELS, "--multi-label", "-k", 2).rows
    agree(model(GIVEN[0], TOPICS, multi_label=True, top_k=2), rows[0])
    with pytest.raises(bertcli.BertcliError, match="labels names no label"):
        model("a")
    with pytest.raises(bertcli.BertcliError, match="not a single text"):
        model([("a", "b")], ["x", "y"])


def test_a_call_keeps_the_options_of_the_object(nli):
    head = bertcli.ZeroShotClassifier.load(nli, backend="torch").head
    options = {"hypothesis": "It is about {}.", "multi_label": True, "top_k": 2}
    model = bertcli.ZeroShotClassifier(head, labels=TOPICS, **options)
    plain = bertcli.ZeroShotClassifier(head)
    expected = plain(GIVEN[0], TOPICS, **options)
    assert len(expected["labels"]) == 2
    assert model(GIVEN[0]) == model(GIVEN[0], TOPICS) == expected
    assert model(GIVEN[0], TOPICS[:1]) == plain(GIVEN[0], TOPICS[:1], **options)
    options |= {"hypothesis": "Is it {}?", "top_k": 1}
    assert model(GIVEN[0], **options) == plain(GIVEN[0], TOPICS, **options)
    with pytest.raises(bertcli.BertcliError, match="labels names no label"):
        model("a", [])
