"""`bertcli pretrain` with extra embeddings: from fields of documents to a model that needs them."""

import csv
import random
import re
from itertools import pairwise

import numpy as np
import pytest
from example_files import written
from front import (
    bad,
    call,
    good,
    json_in,
)
from pretrain_folders import STILL, config_file, lines
from safetensors.torch import load_file

from bertcli.training.pretraining import Instances

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP, MASK = 2, 3, 4
LETTERS = "abcdefgh"
PIECES = [f"##{letter}" for letter in LETTERS]
FIXED = ["--threads", 1, "--device", "cpu"]
SHORT = [*FIXED, "--steps", 1, "--batch-size", 4]


def documents(count, seed=0, sizes=(1, 1, 2)):
    """Random words of one letter or two: `hint` tells the word, `noise` nothing."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words = [
            ["".join(draw.choices(LETTERS, k=draw.choice(sizes))) for _ in range(5)]
            for _ in range(8)
        ]
        hints = [[hint_of(word) for word in sentence] for sentence in words]
        found.append(
            {
                "text": "\n".join(map(" ".join, words)),
                "hint_ids": [one for each in hints for one in each],
                "noise": [draw.randrange(9) for _ in range(40)],
            }
        )
    return found


def hint_of(word):
    """A number from 1 for each word."""
    place = 0
    for letter in word:
        place = place * (len(LETTERS) + 1) + LETTERS.index(letter) + 1
    return place


def in_lists(document):
    """The same document as a list of sentences, with a list of hints for each."""
    sentences = document["text"].split("\n")
    hints = iter(document["hint_ids"])
    listed = [[next(hints) for _ in sentence.split()] for sentence in sentences]
    return {**document, "text": sentences, "hint_ids": listed}


BOTH = ["--extra", "hint=hint_ids", "--extra", "noise=noise"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, a tokenizer of letters, and instances with both embeddings and with none."""
    folder = tmp_path_factory.mktemp("extra")
    (folder / "tokenizer").mkdir()
    tokens = [*SPECIAL, *LETTERS, *PIECES]
    (folder / "tokenizer" / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    (folder / "tokenizer" / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    written(folder / "corpus.jsonl", documents(60))
    config_file(folder / "config.json", **STILL)
    for name, extra in {"with": BOTH, "without": []}.items():
        done = prepare(folder, folder / "corpus.jsonl", "-o", folder / name, *extra)
        assert done.code == 0, done
    return folder


def prepare(place, *argv, **options):
    model = ["-m", place / "tokenizer", "--max-length", 32, "--dupe-factor", 2]
    return call("pretrain", "prepare", *argv, *model, **options)


def run(place, data, out, *more, config="config.json"):
    source = [] if "--init" in more else ["--config", place / config]
    return call("pretrain", "run", data, "-o", out, *source, *more)


def rows_of(folder):
    return Instances(folder).rows


# --- from documents to instances ----------------------------------------------------------------


def test_ids_travel_with_their_tokens(place):
    """Through sentences, pairs, truncation and masks; special tokens and padding have 0."""
    columns, cut = rows_of(place / "with"), 0
    assert len(columns["lengths"]) > 100 and columns["next_sentence_labels"].any()
    for at, length in enumerate(columns["lengths"]):
        ids = columns["input_ids"][at].copy()
        count = columns["masked_lm_counts"][at]
        ids[columns["masked_lm_positions"][at][:count]] = columns["masked_lm_ids"][at][:count]
        hints = columns["extra.hint"][at]
        assert not hints[length:].any() and not hints[ids < 5].any()
        tokens = [*zip(ids[:length].tolist(), hints[:length].tolist(), strict=True)]
        assert all(hint for id, hint in tokens if id > MASK)
        for (first, hint), (second, after) in pairwise(tokens):
            if second >= 5 + len(LETTERS):  # it continues a word
                if first > MASK:
                    assert hint == after == hint_of(word(first, second))
                else:
                    cut += 1  # the word lost its first piece, and its id stays that of the word
                    assert after % (len(LETTERS) + 1) == second - 4 - len(LETTERS)
            elif first in range(5, 5 + len(LETTERS)) and hint <= len(LETTERS):
                assert hint == first - 4
    assert cut


def word(*ids):
    tokens = [*SPECIAL, *LETTERS, *PIECES]
    return "".join(tokens[id].removeprefix("##") for id in ids)


def test_the_index_names_them_and_their_sizes(place):
    index = json_in(place / "with" / "instances.json")
    assert index["extra_embeddings"] == SIZES
    assert index["extra_fields"] == {"hint": "hint_ids", "noise": "noise"}


def test_every_form_of_a_document_gives_the_same_bytes(place, tmp_path):
    """Lists of sentences with a list for each, and tables with a list in a cell."""
    found = documents(60)
    written(tmp_path / "lists.jsonl", [in_lists(one) for one in found])
    with (tmp_path / "table.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, [*found[0]])
        table.writeheader()
        for one in found:
            table.writerow({**one, "hint_ids": " ".join(map(str, one["hint_ids"]))})
    expected = {path.name: path.read_bytes() for path in (place / "with").iterdir()}
    for name in ("lists.jsonl", "table.csv"):
        out = tmp_path / name.partition(".")[0]
        assert prepare(place, tmp_path / name, *BOTH, "-o", out).code == 0
        assert {path.name: path.read_bytes() for path in out.iterdir()} == expected


def test_a_number_is_the_id_of_every_word(place, tmp_path):
    rows = [
        {"text": ["a b", "c"], "ids": [1, [2]]},
        {"text": "a b\n\nc", "ids": 3},
        {"text": "a b\nc", "ids": [4, 5, 6]},
        {"text": ["ab", "c"], "ids": [[7, 8], 1]},  # one per token
    ]
    file = written(tmp_path / "a.jsonl", rows)
    assert prepare(place, file, "--extra", "x=ids", "-o", tmp_path / "made").code == 0
    columns = rows_of(tmp_path / "made")
    assert {*np.unique(columns["extra.x"]).tolist()} == {*range(9)}


# --- from instances to a model ------------------------------------------------------------------

LEARN = [*FIXED, "--steps", 120, "--batch-size", 16, "--learning-rate", 1e-2]
SIZES = {"hint": 1 + 9 * 8 + 8, "noise": 9}


def test_only_the_model_with_the_ids_tells_the_masked_words(place, tmp_path):
    """A masked word keeps its id, which says it; without the ids the words are random."""
    file, data = written(tmp_path / "a.jsonl", documents(60, sizes=(1,))), tmp_path / "data"
    assert prepare(place, file, *BOTH, "-o", data).code == 0
    accuracy = {}
    for chosen in ("hint=hint_ids", "noise=noise"):
        name = chosen.partition("=")[0]
        done = run(place, data, tmp_path / name, *LEARN, "--extra", chosen)
        assert done.code == 0, done
        accuracy[name] = lines(tmp_path / name)[-1]["masked_accuracy"]
        config = json_in(tmp_path / name / "config.json")
        assert [*config["extra_embeddings"]] == [name]
    assert accuracy["hint"] > 0.95 and accuracy["noise"] < 0.3, accuracy
    texts = [
        {"text": "a [MASK] b", "pair": "[MASK] a", "hint_ids": [1, 5, 2, 8, 1]},
        {"text": "a [MASK] b", "pair": "[MASK] a", "hint_ids": [1, 3, 2, 6, 1]},
    ]
    file = written(tmp_path / "texts.jsonl", texts)
    found = good("fill-mask", "-i", file, "-m", tmp_path / "hint", "--top-k", 1, *FIXED).rows
    filled = [[one["token_str"] for one in row["predictions"]] for row in found]
    assert filled == [["e", "h"], ["c", "f"]] and set(found[0]) == {"id", "predictions"}
    one, other = call("next-sentence", "-i", file, "-m", tmp_path / "hint", *FIXED).rows
    assert one != other
    done = bad("fill-mask", "a [MASK]", "-m", tmp_path / "hint", *FIXED)
    assert "field 'hint_ids': expected a list of integers" in done.error


@pytest.fixture(scope="module")
def trained(place):
    """A model with both embeddings, and one without."""
    for name in ("with", "without"):
        assert run(place, place / name, place / f"model-{name}", *SHORT).code == 0
    return place


def test_the_model_reads_the_fields_that_it_learnt_from(trained, tmp_path):
    model = trained / "model-with"
    config = json_in(model / "config.json")
    assert config["extra_embeddings"] == SIZES
    assert config["extra_fields"] == {"hint": "hint_ids", "noise": "noise"}
    texts = [{"text": "a bc", "hint_ids": [1, 21], "noise": 3, "label": one} for one in "xxyy"]
    file = written(tmp_path / "a.jsonl", [*texts, {**texts[0], "noise": 4}])
    found = good("embed", "-i", file, "-m", model, "--pooling", "mean", *FIXED).rows
    assert found[0]["embedding"] == found[1]["embedding"] != found[-1]["embedding"]
    done = bad("embed", "a bc", "-m", model, *FIXED)
    assert "field 'hint_ids': expected a list of integers" in done.error
    train = ["train", file, "-m", model, *SHORT, "--eval-fraction", 0, *BOTH]
    assert call(*train, "-o", tmp_path / "out").code == 0
    assert good("classify", "-i", file, "-m", tmp_path / "out", *FIXED).rows


def test_embeddings_are_added_to_a_model_as_zeros(trained, tmp_path):
    init = ["--init", trained / "model-without", *FIXED, "--batch-size", 4, "--steps"]
    assert run(trained, trained / "with", tmp_path / "a", *init, 1, "--learning-rate", 0).code == 0
    before = load_file(trained / "model-without" / "model.safetensors")
    after = load_file(tmp_path / "a" / "model.safetensors")
    added = after.keys() - before.keys()
    assert sorted(added) == [f"bert.embeddings.extra.{name}.weight" for name in SIZES]
    assert not any(after[name].any() for name in added)
    assert all((after[name] == before[name]).all() for name in before)
    assert run(trained, trained / "with", tmp_path / "b", *init, 4).code == 0
    learnt = load_file(tmp_path / "b" / "model.safetensors")
    assert all(learnt[name].any() for name in added)
    init[1] = tmp_path / "b"
    assert run(trained, trained / "with", tmp_path / "c", *init, 1).code == 0
    done = run(trained, trained / "without", tmp_path / "d", *init, 1)
    assert done.code == 1 and re.search(
        "the extra embedding hint has 81 ids, and the instances none\n"
        "hint: prepare the instances with --extra hint=FIELD",
        done.err,
    )


def test_sizes_of_a_config_may_be_larger(place, tmp_path):
    for sizes, said in (({"hint": 99}, ""), ({"noise": 8}, "8 ids, and the instances 9")):
        config_file(place / "sizes.json", extra_embeddings=sizes)
        out = tmp_path / str(len(said))
        done = run(place, place / "with", out, *SHORT, config="sizes.json")
        assert done.code == bool(said) and said in done.err
        if not said:
            found = json_in(out / "config.json")["extra_embeddings"]
            assert found == {**SIZES, **sizes}


def test_held_out_texts_need_the_same_ids_and_may_have_more(place, tmp_path):
    argv = [*SHORT, "--eval-dir"]
    done = run(place, place / "with", tmp_path / "out", *argv, place / "without")
    assert done.code == 1 and f"{place / 'without'}: the instances have no ids of" in done.error
    file = written(tmp_path / "a.jsonl", [{**one, "noise": 20} for one in documents(4)])
    assert prepare(place, file, *BOTH, "-o", tmp_path / "held").code == 0
    assert run(place, place / "with", tmp_path / "out", *argv, tmp_path / "held").code == 0
    config = json_in(tmp_path / "out" / "config.json")
    assert config["extra_embeddings"]["noise"] == 21
    done = run(place, place / "without", tmp_path / "plain", *argv, tmp_path / "held")
    assert done.code == 0, done


@pytest.mark.parametrize(
    ("data", "extra", "said"),
    [
        ("without", "hint=hint_ids", "without has the ids of none"),
        ("with", "mood=hint_ids", "with has the ids of {'hint': 'hint_ids', 'noise': 'noise'}"),
        ("with", "hint=noise", "with has the ids of {'hint': 'hint_ids', 'noise': 'noise'}"),
        ("with", "hint", "--extra hint: NAME=FIELD expected"),
    ],
)
def test_ids_that_were_not_prepared_are_refused(place, data, extra, said, tmp_path):
    done = run(place, place / data, tmp_path / "out", *SHORT, "--extra", extra)
    assert done.code == 2 and said in done.error and not (tmp_path / "out").exists()
