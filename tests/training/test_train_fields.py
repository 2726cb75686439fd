"""`bertcli train` and `evaluate` on files whose fields have other names."""

import pytest
from example_files import asked, belonging, reviews, scored, several, tagged, written
from front import (
    call,
    good,
    json_in,
)

TEXT, PAIR, LABEL = "--text-field", "--pair-field", "--label-field"
KINDS = {  # rows, other names for their fields, options
    "classify": (reviews(), {"text": "review", "label": "mood"}, [TEXT, "review", LABEL, "mood"]),
    "multilabel": (several(), {"labels": "mood"}, [LABEL, "mood"]),
    "regress": (scored(), {"score": "mood"}, [LABEL, "mood"]),
    "tag": (tagged(), {"words": "tokens", "tags": "ner"}, [TEXT, "tokens", LABEL, "ner"]),
    "answer": (
        asked(),
        {"question": "q", "context": "passage", "answer": "a"},
        [TEXT, "q", PAIR, "passage", LABEL, "a", "--task", "answer"],
    ),
    "contrast": (
        belonging(),
        {"anchor": "query", "positive": "document"},
        [TEXT, "query", PAIR, "document", "--task", "embed"],
    ),
    "similarity": (
        scored(),
        {"text": "one", "pair": "two", "score": "how"},
        [TEXT, "one", PAIR, "two", LABEL, "how", "--task", "embed"],
    ),
}


def argv(file, out, base, *more):
    fixed = ["--threads", 1, "--device", "cpu", "--full", "--steps", 1]
    return ["train", file, "-o", out, "-m", base, *fixed, *more]


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_are_the_same_examples(kind, base, tmp_path):
    rows, names, options = KINDS[kind]
    usual = ["--task", "embed"] if kind == "similarity" else []
    renamed = [{names.get(key, key): value for key, value in row.items()} for row in rows]
    found = []
    for place, given, more in (("one", rows, usual), ("two", renamed, options)):
        out = tmp_path / place
        done = call(*argv(written(tmp_path / f"{place}.jsonl", given), out, base, *more))
        assert done.code == 0, done.err
        manifest = json_in(out / "manifest.json")
        found.append((manifest["task"], manifest["data_sha256"]))
    assert found[0] == found[1]


def test_evaluate_takes_them_as_well(base, tmp_path):
    file = written(tmp_path / "e.jsonl", reviews())
    assert call(*argv(file, tmp_path / "out", base)).code == 0
    rows = [{"review": row["text"], "mood": row["label"]} for row in reviews()]
    other = written(tmp_path / "o.jsonl", rows)
    names = [TEXT, "review", LABEL, "mood"]
    model = ["-m", tmp_path / "out"]
    assert good("evaluate", other, *model, *names).rows == good("evaluate", file, *model).rows


def test_the_fields_of_the_file_decide_where_text_and_pair_are_named(base, tmp_path):
    rows = [{"sentence1": row["text"], "sentence2": row["pair"]} | row for row in scored()]
    rows = [{key: row[key] for key in ("sentence1", "sentence2", "score")} for row in rows]
    file = written(tmp_path / "e.jsonl", rows)
    more = [TEXT, "sentence1", PAIR, "sentence2"]
    done = call(*argv(file, tmp_path / "out", base, *more))
    assert done.code == 0, done.err
    assert json_in(tmp_path / "out/manifest.json")["task"] == "regress"
    pairs = written(tmp_path / "p.jsonl", [{**row, "score": None} for row in rows])
    pairs.write_text(pairs.read_text().replace(', "score": null', ""))
    done = call(*argv(pairs, tmp_path / "other", base, *more))
    assert json_in(tmp_path / "other/manifest.json")["task"] == "embed"
