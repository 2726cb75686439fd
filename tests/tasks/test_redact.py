"""`bertcli tag --redact`: entities replaced by their label, all other characters unchanged."""

import csv
import io
import json
from itertools import pairwise
from unicodedata import normalize

import pyarrow.parquet
import pytest
import transformers
from front import bad, call, good, jsonl
from hypothesis import given
from hypothesis import strategies as st
from model_reference import randomise
from task_models import ENTITIES, LENGTH, labels, texts
from tokenizers_made import MADE

import bertcli
from bertcli.cli.commands import tasks
from bertcli.tokenizing.graphemes import divides

pytestmark = pytest.mark.parity

TAGS = labels(*ENTITIES)


@pytest.fixture
def tagger(models):
    return models("BertForTokenClassification", **TAGS)


def masked(text, entities, mask="[{label}]", only=()):
    """Return what `--redact` promises, character by character."""
    spans = []
    for entity in entities:
        covered = [i for i in range(entity["start"], entity["end"]) if not text[i].isspace()]
        if covered and (not only or entity["entity_group"] in only):
            start, end = covered[0], covered[-1] + 1
            while divides(text, start):
                start -= 1
            while divides(text, end):
                end += 1
            spans.append((start, end, entity))
    pieces = []
    index = 0
    while index < len(text):
        here = [span for span in spans if span[0] <= index < span[1]]
        if not here:
            pieces.append(text[index])
            index += 1
            continue
        stop = index + 1  # of all spans that overlap each other from here on
        group = []
        while more := [span for span in spans if span[0] < stop and span[1] > index]:
            if more == group:
                break
            group = more
            stop = max(span[1] for span in group)
        best = max(group, key=lambda s: (s[2]["end"] - s[2]["start"], s[2]["score"]))[2]
        filled = mask.replace("{score}", f"{best['score']:.2f}")
        pieces.append(filled.replace("{label}", best["entity_group"]))
        index = stop
    return "".join(pieces)


FAMILY = "\U0001f469\u200d\U0001f467"  # two people joined to one picture
WORDS = ("Angela", "Berlin", "Jose\u0301", "e\u0301\u0323", "naïve", "ﬁn", "한국", FAMILY)
WORDS += ("\U0001f1e9\U0001f1ea", "\U0001f3fd", "\u0301", "\u200d", ".", "[PER]", "[SEP]")
WORDS += (" ", "  ", "\n", "\r", "\t", "\u3000", "\u00a0")
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=25).map("".join)


@given(st.lists(TEXTS, min_size=1, max_size=20), st.sampled_from(["*", "PER", "LOC,MISC"]))
def test_all_but_the_entities_is_unchanged(models, several, only):
    argv = ("tag", "-m", models("BertForTokenClassification", **TAGS), "-q")
    argv += ("-i", "-", "--input-format", "jsonl")
    given_rows = jsonl({"text": text} for text in several)
    plain = good(*argv, stdin=given_rows).rows
    rows = good(*argv, f"--redact={only}", stdin=given_rows).rows
    for text, row, plain_row in zip(several, rows, plain, strict=True):
        assert list(row) == ["id", "text", "redacted", "entities"]
        assert row["text"] == text
        if "truncated" not in plain_row:
            assert row["entities"] == plain_row["entities"]
        replaced = () if only == "*" else only.split(",")
        assert row["redacted"] == masked(text, row["entities"], only=replaced)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("family", ["roberta", "xlm_roberta", "deberta", "modernbert"])
def test_tokens_that_overlap_or_hold_blanks(tmp_path, family):
    """Bytes of one character are tokens with the same span, and others begin with a blank."""
    folder = MADE[family](tmp_path / "m")
    prefix = {"xlm_roberta": "XLMRoberta", "deberta": "DebertaV2", "modernbert": "ModernBert"}
    name = prefix.get(family, family.title())
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{name}Config")(
        **sizes, **TAGS, vocab_size=2000, intermediate_size=16, pad_token_id=1
    )
    model = getattr(transformers, f"{name}ForTokenClassification")(config).eval()
    randomise(model, seed=4)
    model.save_pretrained(folder)
    given_texts = [
        "a Paris  is Jose\u0301 😀 ﬁn",
        " 한국 👩‍👩‍👧 x",
        "Paris is 😀😀 é",
        *texts(8, 12),
    ]
    argv = ("tag", *given_texts, "-m", folder, "-q")
    overlapping = blanks = 0
    for row in good(*argv, "--redact", "--aggregation", "simple").rows:
        entities = row["entities"]
        overlapping += sum(two["start"] < one["end"] for one, two in pairwise(entities))
        blanks += sum(row["text"][one["start"]].isspace() for one in entities if one["end"])
        assert row["redacted"] == masked(row["text"], entities)
    assert overlapping or family == "deberta"
    assert blanks or family not in ("deberta", "modernbert")


def test_an_accent_goes_with_its_letter(tagger):
    """The tokenizer drops it, so that it is not in the span of the entity."""
    text = normalize("NFD", "Café José")
    (row,) = good("tag", text, "-m", tagger, "--redact", "--aggregation", "max").rows
    assert not any(one["end"] == len(text) for one in row["entities"])
    assert "\u0301" not in row["redacted"]


def test_the_mask_and_the_scores(tagger):
    argv = ("tag", "Angela lives in Ouagadougou.", "-m", tagger)
    (plain,) = good(*argv).rows
    for options, mask in (
        (["--redact", "--redact-with", "***"], "***"),
        (["--redact", "--redact-with", ""], ""),
        (["--redact", "--redact-with", "<{label}|{label}|{}>"], "<{label}|{label}|{}>"),
        (["--redact", "--scores"], "[{label} {score}]"),
    ):
        (row,) = good(*argv, *options).rows
        assert row["redacted"] == masked(row["text"], plain["entities"], mask)


def test_formats_have_one_row_for_each_text(tagger, tmp_path):
    path = tmp_path / "in.jsonl"
    given_texts = ["Angela lives in Berlin.", "", "  ", 'a "b",\nc']
    given_rows = [{"id": f"i{n}", "text": text, "n": n} for n, text in enumerate(given_texts)]
    path.write_text(jsonl(given_rows))
    argv = ("tag", "-i", path, "-m", tagger, "--redact", "-q")
    rows = good(*argv, "--keep-fields", "n").rows
    assert [{name: row[name] for name in given_rows[0]} for row in rows] == given_rows
    expected = [{name: row[name] for name in ("id", "text", "redacted")} for row in rows]
    flat = [row | {"truncated": "0"} for row in expected]
    assert list(csv.DictReader(io.StringIO(good(*argv, "-f", "csv").out))) == flat
    good(*argv, "-o", tmp_path / "out.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row | {"truncated": "0"} for row in table] == flat
    (tmp_path / "none.txt").touch()
    empty = call("tag", "-i", tmp_path / "none.txt", "-m", tagger, "--redact", "-f", "csv", "-q")
    assert empty.out == "id,text,redacted,truncated\n"
    assert good(*argv, "-f", "txt", "-0").out == "".join(row["redacted"] + "\0" for row in expected)
    refused = call(*argv, "-f", "txt")
    assert "in.jsonl:4: a text holds '\\n', which ends it" in refused.err
    shown = good("tag", given_texts[0], "-m", tagger, "--redact", "-f", "table").out
    assert expected[0]["redacted"] in shown
    assert "Berlin" not in shown
    taken = jsonl([{"body": "a", "redacted": "b"}])
    fields = ("--text-field", "body", "--keep-fields", "redacted")
    refused = bad("tag", "-q", "-m", tagger, "--redact", *fields, stdin=taken)
    assert "field 'redacted' cannot be kept" in refused.error


def test_plain_lines_keep_their_order_and_blank_lines(tagger):
    lines = ["Angela lives in Berlin.", "", "  \t ", *texts(5)]
    given_lines = "".join(f"{line}\n" for line in lines)
    argv = ("tag", "-m", tagger, "--redact", "-q")
    found = good(*argv, "-f", "txt", stdin=given_lines).out
    assert found == "".join(row["redacted"] + "\n" for row in good(*argv, stdin=given_lines).rows)
    assert found.splitlines()[1:3] == lines[1:3]


def test_no_part_of_a_long_text_stays(tagger):
    """Without --stride, too: what was truncated would be shown."""
    text = "Angela lives in Berlin. " * 40
    argv = ("tag", text, "-m", tagger)
    done = good(*argv, "--redact", "--aggregation", "first")
    (row,) = done.rows
    assert row["redacted"] == masked(text, row["entities"])
    assert row["entities"][-1]["end"] > len(text) - 10
    windows = good(*argv, "--stride", LENGTH // 4, "--aggregation", "first").rows
    assert [row["entities"]] == [one["entities"] for one in windows]


def test_words_that_are_split_are_joined_by_blanks(tagger):
    words = ["Angela", "Merkel", "in", "(!)"]
    (row,) = good("tag", "--pre-split", json.dumps(words), "-m", tagger, "--redact").rows
    assert row["text"] == "Angela Merkel in (!)"
    assert row["redacted"] == masked(row["text"], row["entities"])


def test_labels_that_cannot_be_replaced(tagger, monkeypatch):
    argv = ("tag", "Angela", "-m", tagger)
    unknown = bad(*argv, "--redact", "PER,per", code=2)
    assert unknown.error == "--redact: unknown label 'per'"
    assert unknown.hint == "the model has: LOC, MISC, PER"
    for options, error in (
        (["--redact", "O"], "the label 'O' cannot be both replaced and left out"),
        (["--redact", ","], "--redact names no label"),
        (["--redact", "PER,PER"], "--redact has the label 'PER' twice"),
        (["--scores"], "--scores requires --redact"),
        (["--redact-with", "x"], "--redact-with requires --redact"),
        (["--redact", "--scores", "--redact-with", "x"], "cannot be combined with --redact-with"),
        (["--redact", "--aggregation", "none"], "cannot be combined with --aggregation none"),
        (["--redact", "--redact-with", "\udcff"], "is not text"),
        (["-f", "txt"], "txt holds redacted texts alone"),
        (["--redact", "-f", "txt", "--keep-fields"], "txt holds the texts alone"),
    ):
        assert error in bad(*argv, *options, code=2).error
    monkeypatch.setattr(tasks, "stdin_is_terminal", lambda: True)
    taken = bad("tag", "--redact", "Angela lives.", "-m", tagger, code=2)
    assert taken.error == "no input: 'Angela lives.' are the labels of --redact"


def test_a_tagger_redacts(tagger):
    model = bertcli.Tagger.load(tagger, backend="torch")
    text = "Angela lives in Berlin."
    (row,) = good("tag", text, "-m", tagger, "--redact", "PER", "--redact-with", "<{label}>").rows
    for redact in ("PER", ["PER"]):
        found = model(text, redact=redact, redact_with="<{label}>")
        assert (found["text"], found["redacted"]) == (row["text"], row["redacted"])
    assert (
        model([text], redact=True)[0]["redacted"]
        == good("tag", text, "-m", tagger, "--redact").rows[0]["redacted"]
    )
    with pytest.raises(bertcli.BertcliError, match="redact: unknown label 'X'"):
        model(text, redact="X")
