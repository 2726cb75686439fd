"""`bertcli score` against a plain loop over transformers, which gives the numbers of two packages.

MINICONS and BERT_SCORE were recorded with minicons 0.3.39 and bert-score 0.3.13 (transformers
4.57.6, torch 2.13.0) on the folders that `scored` makes, to which vocab.txt, or vocab.json and
merges.txt, and model_max_length were added for the slow tokenizers of bert-score:

    MaskedLMScorer(folder, "cpu", tokenizer=AutoTokenizer.from_pretrained(folder)).sequence_score(
        [text], reduction=lambda x: x.sum().item(), PLL_metric=metric)
    bert_score.score(candidates, references, model_type=folder, num_layers=layer, idf=idf)
"""

import math
from collections import Counter
from functools import cache

import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers
from front import TINY, bad, call, good, jsonl, put_json, rows_in
from model_reference import randomise
from task_models import LENGTH, SIZES, agree, tokenizer
from tokenizers_made import MADE

import bertcli
from bertcli.models.heads import BertLMPredictionHead
from bertcli.tasks import bert_score, pseudo_likelihood

pytestmark = pytest.mark.parity

FAMILIES = {"bert": "Bert", "roberta": "Roberta", "modernbert": "ModernBert"}
TEXTS = [
    "The unbelievable bank of the river.",
    "Ouagadougou!",
    "no",
    "I love NLP, don't you? 😀 12.5%",
    "a [MASK] of [MASK] unbelievably",
]
PAIRS = [
    ("the cat sat on the mat", "a cat was sitting on a mat"),
    ("  unbelievable! ", "I love NLP"),
    ("the bank of the river", "the bank of the river"),
    ("", "x"),
    ("no", " yes,  no "),
    ("Ouagadougou is a city", "It is a large city in Africa."),
]
MINICONS = {
    "bert": {
        "original": [-81.22549, -74.3726, -11.3809, -164.55374, -100.86166],
        "within_word_l2r": [-81.22549, -73.50665, -11.3809, -164.52171, -100.17869],
    },
    "roberta": {
        "original": [-151.64786, -58.82221, -5.91147, -123.55063, -184.06221],
        "within_word_l2r": [-151.67314, -59.24488, -5.91147, -123.51073, -183.97668],
    },
    "modernbert": {
        "original": [-152.86218, -60.47181, -6.87671, -125.72479, -106.40653],
        "within_word_l2r": [-152.4491, -60.51202, -6.87671, -125.62076, -106.17726],
    },
}
BERT_SCORE = {  # (layer, idf) -> precision, recall and F1 of all pairs
    "bert": {
        (1, False): [
            [0.870537, 0.767849, 1.0, 0.0, 0.87856, 0.868312],
            [0.860359, 0.714305, 1.0, 0.0, 0.84961, 0.857282],
            [0.865418, 0.74011, 1.0, 0.0, 0.863842, 0.862761],
        ],
        (2, False): [
            [0.933349, 0.861173, 1.0, 0.0, 0.910931, 0.9218],
            [0.901624, 0.858302, 1.0, 0.0, 0.892998, 0.912535],
            [0.917212, 0.859735, 1.0, 0.0, 0.901876, 0.917144],
        ],
        (1, True): [
            [0.871227, 0.767849, 1.0, 0.0, 0.87856, 0.872525],
            [0.87204, 0.714305, 1.0, 0.0, 0.84961, 0.860041],
            [0.871633, 0.74011, 1.0, 0.0, 0.863842, 0.866238],
        ],
        (2, True): [
            [0.934921, 0.861173, 1.0, 0.0, 0.910931, 0.919658],
            [0.910399, 0.858302, 1.0, 0.0, 0.892998, 0.911575],
            [0.922497, 0.859735, 1.0, 0.0, 0.901876, 0.915599],
        ],
    },
    "roberta": {
        (1, False): [
            [0.822395, 0.727468, 1.0, 0.0, 0.797798, 0.818272],
            [0.813939, 0.784599, 1.0, 0.0, 0.77061, 0.790368],
            [0.818145, 0.754954, 1.0, 0.0, 0.783969, 0.804078],
        ],
        (2, False): [
            [0.929617, 0.919927, 1.0, 0.0, 0.90697, 0.945166],
            [0.923501, 0.932443, 1.0, 0.0, 0.890041, 0.945138],
            [0.926549, 0.926143, 1.0, 0.0, 0.898426, 0.945152],
        ],
        (1, True): [
            [0.820425, 0.716846, 1.0, 0.0, 0.797798, 0.820587],
            [0.806249, 0.779279, 1.0, 0.0, 0.809987, 0.78257],
            [0.813275, 0.74676, 1.0, 0.0, 0.803847, 0.801128],
        ],
        (2, True): [
            [0.931376, 0.915449, 1.0, 0.0, 0.90697, 0.949531],
            [0.922075, 0.932783, 1.0, 0.0, 0.906236, 0.943994],
            [0.926702, 0.924035, 1.0, 0.0, 0.906603, 0.946754],
        ],
    },
}


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Make folders of random masked language models with their own tokenizers, each once."""
    root = tmp_path_factory.mktemp("scored")

    def folder(family):
        path = root / family
        if not path.exists():
            if family == "bert":
                tokenizer().save_pretrained(path)
            else:
                MADE[family](path)
            words = transformers.AutoTokenizer.from_pretrained(path)
            sizes = SIZES | {"vocab_size": len(words), "pad_token_id": words.pad_token_id}
            config = transformers.AutoConfig.for_model(family, **sizes)
            model = getattr(transformers, f"{FAMILIES[family]}ForMaskedLM")(config)
            randomise(model, seed=3).save_pretrained(path)
        return path

    return folder


@cache
def loaded(kind, folder):
    """A model of transformers, and its tokenizer."""
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def log_probabilities(folder, text, *, within_word=False):
    """The log probability of each token: one masked position at a time."""
    model, words = loaded("AutoModelForMaskedLM", folder)
    encoded = words(text, return_tensors="pt")
    ids = encoded.input_ids[0]
    word_ids = encoded.word_ids(0)
    found = []
    for position, token_id in enumerate(ids.tolist()):
        if token_id in (words.cls_token_id, words.sep_token_id, words.pad_token_id):
            continue
        masked = ids.clone()
        masked[position] = words.mask_token_id
        for later in range(position + 1, len(ids)):
            if within_word and word_ids[later] == word_ids[position] is not None:
                masked[later] = words.mask_token_id
        logits = model(masked[None]).logits[0, position]
        found.append(logits.log_softmax(-1)[token_id].item())
    return found


def token_ids(words, text):
    """The ids of a text as bert-score has them."""
    text = text.strip()
    if text and isinstance(words, transformers.RobertaTokenizer):
        text = f" {text}"
    return words(text)["input_ids"]


@torch.no_grad()
def similarities(folder, pairs, *, layer, idf=False):
    """BERTScore of pairs, one pair at a time: [precision, recall, f1]."""
    model, words = loaded("AutoModel", folder)
    special = {words.cls_token_id, words.sep_token_id}
    texts = Counter()
    for _, reference in pairs:
        texts.update({*token_ids(words, reference)})

    def weight(token_id):
        if idf:
            return math.log((len(pairs) + 1) / (texts[token_id] + 1))
        return float(token_id not in special)

    found = []
    for pair in pairs:
        ids = [token_ids(words, text) for text in pair]
        if min(map(len, ids)) == 2:
            found.append([0.0, 0.0, 0.0])
            continue
        states = [
            model(torch.tensor([one]), output_hidden_states=True).hidden_states[layer][0]
            for one in ids
        ]
        one, other = (torch.nn.functional.normalize(state, dim=-1) for state in states)
        cosines = one @ other.T
        scores = []
        for best, tokens in zip((cosines.amax(1), cosines.amax(0)), ids, strict=True):
            weights = torch.tensor([weight(token_id) for token_id in tokens])
            scores.append(float((best * weights).sum() / weights.sum()))
        precision, recall = scores
        found.append([precision, recall, 2 * precision * recall / (precision + recall)])
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("metric", ["original", "within_word_l2r"])
def test_the_loop_has_the_numbers_of_minicons(scored, family, metric):
    for text, expected in zip(TEXTS, MINICONS[family][metric], strict=True):
        found = log_probabilities(scored(family), text, within_word=metric != "original")
        assert sum(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", BERT_SCORE)
def test_the_loop_has_the_numbers_of_bert_score(scored, family):
    for (layer, idf), expected in BERT_SCORE[family].items():
        found = similarities(scored(family), PAIRS, layer=layer, idf=idf)
        assert np.allclose(np.transpose(found), expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("option", [(), ("--within-word",)])
def test_scores_are_those_of_a_loop(engine, scored, family, option):
    folder = scored(family)
    rows = good("score", *TEXTS, "", "-m", folder, "--per-token", *option, "-q").rows
    for row, text in zip(rows, TEXTS, strict=False):
        expected = log_probabilities(folder, text, within_word=bool(option))
        agree([token["logprob"] for token in row["tokens"]], expected, text)
        agree(row["score"], sum(expected), text)
        agree(row["perplexity"], math.exp(-sum(expected) / len(expected)), text)
        assert row["n_tokens"] == len(expected)
        spans = [text[token["start"] : token["end"]] for token in row["tokens"]]
        assert "".join(spans) == text.replace(" ", "") or family != "bert"
    assert rows[-1] == {"id": 5, "score": 0.0, "n_tokens": 0, "perplexity": None, "tokens": []}
    sums = good("score", *TEXTS, "", "-m", folder, *option, "-q").rows
    assert sums == [{name: row[name] for name in row if name != "tokens"} for row in rows]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("idf", [False, True])
def test_similarities_are_those_of_a_loop(engine, scored, tmp_path, family, layer, idf):
    path = tmp_path / "pairs.jsonl"
    path.write_text(jsonl({"text": one, "pair": other} for one, other in PAIRS))
    option = ["--idf"] if idf else []
    folder = scored(family)
    rows = good("score", "--pairs", path, "-m", folder, "--layers", layer, *option, "-q").rows
    found = [[row["precision"], row["recall"], row["f1"]] for row in rows]
    agree(found, similarities(folder, PAIRS, layer=layer, idf=idf))
    if layer == 2:  # the last one
        assert good("score", "--pairs", path, "-m", folder, *option, "-q").rows == rows


def test_the_default_model_compares_pairs(usual_engine, default_folder):
    row = good("score", *PAIRS[0][:1], "--pair", PAIRS[0][1], "--layers", 3).rows[0]
    expected = similarities(default_folder, PAIRS[:1], layer=3)
    agree([row["precision"], row["recall"], row["f1"]], expected[0])


def test_pairs_come_from_columns_and_fields(scored, tmp_path):
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS[:1]))
    table = tmp_path / "pairs.csv"
    table.write_text("candidate,reference\n{},{}\n".format(*PAIRS[0]))
    model = ("-m", scored("bert"))
    rows = good("score", PAIRS[0][0], "--pair", PAIRS[0][1], *model).rows
    fields = ("--text-field", "candidate", "--pair-field", "reference")
    assert good("score", "--pairs", tsv, *model).rows == rows
    assert good("score", "--pairs", "-", *model, stdin=tsv.read_text()).rows == rows
    assert good("score", "--pairs", table, *fields, *model).rows == rows
    assert good("score", "-i", table, *fields, *model).rows == rows


def test_a_text_alone_has_the_bits_that_it_has_among_others(usual_engine, scored, monkeypatch):
    argv = ("score", "-m", scored("modernbert"), "--per-token", "-q")
    rows = good(*argv, *TEXTS).rows
    for text, row in zip(TEXTS, rows, strict=True):
        assert good(*argv, text).rows == [row | {"id": 0}]
    assert good(*argv, *TEXTS, "--batch-tokens", 40, "--window", 2).rows == rows
    monkeypatch.setattr(pseudo_likelihood, "COPIED_TOKENS", 50)
    assert good(*argv, *TEXTS).rows == rows
    pairs = jsonl({"text": one, "pair": other} for one, other in PAIRS)
    compare = ("score", "--pairs", "-", "--input-format", "jsonl", "-q", "-m", scored("roberta"))
    rows = good(*compare, stdin=pairs).rows
    monkeypatch.setattr(bert_score, "TOKENS_PER_BLOCK", 20)
    assert good(*compare, "--batch-tokens", 40, "--window", 2, stdin=pairs).rows == rows


def test_a_graph_in_a_file_has_the_same_scores(usual_engine, scored, tmp_path):
    graph = tmp_path / "graph"
    good("export", "-m", scored("bert"), "--to", "onnx", "-o", graph, "-q")
    rows = good("score", *TEXTS, "--within-word", "-m", scored("bert"), "-q").rows
    agree(good("score", *TEXTS, "--within-word", "-m", graph, "-q").rows, rows)


def test_the_vocabulary_is_scored_only_at_masked_tokens(scored, monkeypatch):
    rows = []
    original = BertLMPredictionHead.forward

    def forward(self, states):
        rows.append(len(states))
        return original(self, states)

    monkeypatch.setattr(BertLMPredictionHead, "forward", forward)
    for option in ([], ["--within-word"]):
        rows.clear()
        found = good("score", *TEXTS, "-m", scored("bert"), *option, "-q").rows
        assert sum(rows) == sum(row["n_tokens"] for row in found)


def test_texts_of_many_words_are_truncated_and_counted(scored):
    text = "one two three " * 40
    done = call("score", text, "no", "-m", scored("bert"))
    assert done.rows[0]["n_tokens"] == LENGTH - 2
    assert done.rows[0]["truncated"] == 120 - (LENGTH - 2)
    assert f"warning: 1 of 2 texts truncated to {LENGTH} tokens (58 dropped)" in done.err
    done = call("score", text, "--pair", "no", "-m", scored("bert"))
    assert done.rows[0]["truncated"] == 58
    assert f"warning: 1 of 1 texts truncated to {LENGTH} tokens (58 dropped)" in done.err


def test_special_tokens_in_a_text_are_not_scored(scored):
    done = call("score", "no [SEP] no", "-m", scored("bert"), "--per-token")
    assert [token["token"] for token in done.rows[0]["tokens"]] == ["no", "no"]
    assert "special tokens in the input were parsed as special tokens (1)" in done.err
    agree(
        [token["logprob"] for token in done.rows[0]["tokens"]],
        log_probabilities(scored("bert"), "no [SEP] no"),
    )
    plain = good("score", "no [SEP] no", "-m", scored("bert"), "--no-parse-special").rows
    assert plain[0]["n_tokens"] == 5


def test_words_that_are_split_already(scored):
    done = good(
        "score", "--pre-split", '["unbelievable","no"]', "-m", scored("bert"), "--per-token"
    )
    (row,) = done.rows
    assert row["tokens"][0] | {"logprob": 0} == {
        "token": "unbelievable",
        "logprob": 0,
        "start": 0,
        "end": 12,
    }


def test_an_idf_of_nothing_but_common_tokens(scored):
    """All tokens of the only reference have weight 0: there is no recall, and F1 is 0."""
    argv = ("score", "no", "--pair", "no", "--idf", "-m", scored("bert"))
    assert good(*argv).rows == [{"id": 0, "precision": None, "recall": None, "f1": 0.0}]
    assert good(*argv, "-f", "csv").out == "id,precision,recall,f1,truncated\n0,,,0.0,0\n"


def test_formats_and_resumed_files_hold_the_pairs(scored, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(jsonl({"id": f"p{n}", "text": a, "pair": b} for n, (a, b) in enumerate(PAIRS)))
    argv = ("score", "--pairs", path, "-m", scored("bert"), "--idf", "-q", "--keep-fields", "pair")
    rows = good(*argv).rows
    assert [row["id"] for row in rows] == [f"p{n}" for n in range(len(PAIRS))]
    out = tmp_path / "scores.parquet"
    good(*argv, "-o", out, "--resume")
    table = pyarrow.parquet.read_table(out).to_pylist()
    agree([{name: row[name] for name in rows[0]} for row in table], rows)
    assert "already complete" in call(*argv[:-3], *argv[-2:], "-o", out, "--resume").err
    good(*argv, "-o", tmp_path / "scores.jsonl")
    assert rows_in(tmp_path / "scores.jsonl") == rows


def test_a_table_of_scores_and_of_coloured_tokens(scored):
    argv = ("score", "I love NLP!", "-m", scored("bert"), "-f", "table")
    shown = good(*argv, COLUMNS="100").out
    assert all(name in shown for name in ("I love NLP!", "score", "n_tokens", "perplexity"))
    shown = good(*argv, "--per-token", COLUMNS="100").out
    assert all(name in shown for name in ("logprob", "probability", "love", "2-6"))
    coloured = good(*argv, "--per-token", COLUMNS="100", FORCE_COLOR="1", TERM="xterm").out
    assert "\x1b[31mlove" in coloured.replace("\x1b[1;31m", "\x1b[31m")
    shown = good("score", "a cat", "--pair", "the cat", "-f", "table", "-m", TINY).out
    assert "a cat | the cat" in shown and "precision" in shown


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (["a", "--idf"], "--idf requires --pairs, --pair or --pair-field", ""),
        (["a", "--layers", 1], "--layers requires --pairs, --pair or --pair-field", ""),
        (
            ["a", "--pair", "b", "--per-token"],
            "--per-token cannot be combined with --pairs, --pair or --pair-field",
            "pairs have the scores of BERTScore",
        ),
        (
            ["a", "--pair", "b", "--within-word"],
            "--within-word cannot be combined with --pairs, --pair or --pair-field",
            "pairs have the scores of BERTScore",
        ),
        (
            ["a", "--pair", "b", "--layers", 9, "-m", TINY],
            "layer 9 not found (--layers)",
            "this model has layers 0 to 2; -1 is the last",
        ),
    ],
)
def test_options_that_do_not_fit(argv, error, hint):
    done = bad("score", *argv, code=2)
    assert done.error == error
    assert not hint or done.hint == hint


def test_records_that_cannot_be_scored(scored, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": "a", "pair": "b"}\n{"text": "no pair"}\n{"text": "b", "pair": "b"}\n')
    argv = ("score", "--pairs", path, "-m", scored("bert"))
    for option in ([], ["--idf"]):
        done = bad(*argv, *option)
        assert done.error == f"{path}:2: is one text, not a candidate and a reference"
        done = call(*argv, *option, "--on-error", "skip")
        assert (done.code, [row["id"] for row in done.rows]) == (1, [0, 2])
        assert "1 record was skipped" in done.err
    assert "needs a masked language model" in bad("score", "a", code=2).error
    assert "BertForMaskedLM" in bad("score", "a", "-m", TINY).error


def test_python_gives_the_rows_of_the_command(usual_engine, scored, tmp_path):
    folder = scored("bert")
    rows = good("score", *TEXTS, "-m", folder, "--per-token", "--within-word", "-q").rows
    options = {"model": folder, "per_token": True, "within_word": True}
    assert bertcli.score(TEXTS, **options) == rows
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    assert bertcli.score(path, **options) == rows
    assert bertcli.MaskedLMScorer.load(folder)(TEXTS, per_token=True, within_word=True) == rows
    pairs = jsonl({"text": one, "pair": other} for one, other in PAIRS)
    argv = ("score", "--pairs", "-", "--input-format", "jsonl", "-m", folder, "--idf", "-q")
    rows = good(*argv, "--layers", 1, stdin=pairs).rows
    assert bertcli.score(pairs=PAIRS, model=folder, layers=1, idf=True) == rows
    assert bertcli.BertScorer.load(folder, layers=1)(PAIRS, idf=True) == rows
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("a\tb\n")
    assert bertcli.score(pairs=tsv) == bertcli.score(pairs=[("a", "b")])
    put_json(tmp_path / "row.jsonl", {"text": "a", "pair": "b"})
    assert bertcli.score(pairs=tmp_path / "row.jsonl") == bertcli.score(pairs=[("a", "b")])
    for wrong, message in (
        ({}, "score needs texts or pairs"),
        ({"texts": ["a"], "pairs": [("a", "b")]}, "score needs texts or pairs"),
        ({"texts": ["a"], "idf": True, "model": folder}, "unknown option 'idf'"),
        ({"texts": ["a"]}, "needs the name of a masked language model"),
        ({"texts": [("a", "b")], "model": folder}, "is a pair of texts"),
        ({"pairs": [("a", "b")], "layers": "1,2"}, "the vectors of one layer are compared"),
        ({"pairs": [("a", "b")], "layers": "x"}, "not a list of numbers"),
        ({"pairs": ["a"]}, "is one text, not a candidate and a reference"),
    ):
        with pytest.raises(bertcli.BertcliError, match=message):
            bertcli.score(**wrong)
