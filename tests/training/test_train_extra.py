"""Extra embeddings at the shell: ids of words that records give, from `train` to `evaluate`."""

import random
import shutil

import pytest
import torch
from example_files import FILLER, written
from front import (
    bad,
    call,
    good,
    json_in,
    put_json,
)
from safetensors.torch import load_file

MOODS = {"glad": (1, 2), "sad": (3, 4)}
FIXED = ["--threads", 1, "--device", "cpu"]
FILES = {"train.jsonl": (300, 0), "test.jsonl": (100, 1)}


def moods(count, seed=0):
    """Texts that say nothing of their label: it stands in the ids of their words alone."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words, label = draw.choices(FILLER, k=draw.randint(2, 5)), draw.choice([*MOODS])
        ids = draw.choices(MOODS[label], k=len(words))
        found.append({"text": " ".join(words), "emotion_ids": ids, "label": label})
    return found


@pytest.fixture(scope="module")
def made(base, tmp_path_factory):
    """A model with emotions, and one without; and a file that neither has seen."""
    place = tmp_path_factory.mktemp("extra")
    file, test = (written(place / name, moods(*how)) for name, how in FILES.items())
    rate = ["--batch-size", 16, "--learning-rate", 3e-3, "--eval-every", 200]
    kinds = {"with": [200, "--extra", "emotion=emotion_ids"], "without": [50, "--full"]}
    for name, more in kinds.items():
        argv = ["train", file, "-o", place / name, "-m", base, *FIXED, *rate, "--steps", *more]
        done = call(*argv)
        assert done.code == 0, done
    return place, test


def test_only_the_model_with_the_ids_learns_what_they_say(made):
    place, test = made
    accuracy = {
        name: good("evaluate", test, "-m", place / name, "--json", *FIXED).rows[0]["accuracy"]
        for name in ("with", "without")
    }
    assert accuracy["with"] >= 0.97 and accuracy["without"] < 0.7, accuracy


def test_the_folder_says_what_it_needs(made):
    config = json_in(made[0] / "with" / "config.json")
    assert config["extra_embeddings"] == {"emotion": 5}
    assert config["extra_fields"] == {"emotion": "emotion_ids"}
    weights = load_file(made[0] / "with" / "model.safetensors")
    table = weights["bert.embeddings.extra.emotion.weight"]
    assert table.shape == (5, 32) and table.abs().sum(1).gt(0).all()
    warnings = good("inspect", "-m", made[0] / "with", "--json").rows[0]["warnings"]
    assert any("ids of their words in emotion_ids" in one for one in warnings)


def test_equal_texts_with_other_ids_are_other_texts(made, tmp_path):
    """And their order changes no number; a number is the id of every word."""
    rows = [
        {"text": "a film", "emotion_ids": ids, "mood": mood}
        for ids, mood in (([1, 2], "g"), ([3, 4], "s"), (1, "g"), ([1, 1], "g"), (3, "s"))
    ]
    model = ["-m", made[0] / "with", *FIXED]
    found = good("classify", "-i", written(tmp_path / "a.jsonl", rows), *model).rows
    assert [row["label"][0] for row in found] == [row["mood"] for row in rows]
    scores = [(row.pop("id"), row.pop("label"), row.pop("score"))[1:] for row in found]
    assert scores[2] == scores[3] != scores[0] and found == [{}] * 5
    again = good("classify", "-i", written(tmp_path / "b.jsonl", rows[::-1]), *model).rows
    assert [(row["label"], row["score"]) for row in again] == scores[::-1]
    kept = good("classify", "-i", tmp_path / "a.jsonl", *model, "--keep-fields", "mood").rows
    assert [set(row) for row in kept] == [{"id", "label", "score", "mood"}] * 5
    kept = good("classify", "-i", tmp_path / "a.jsonl", *model, "--keep-fields").rows
    assert kept[0]["emotion_ids"] == [1, 2]


def test_cells_of_a_table_hold_ids_as_well(made, tmp_path):
    (tmp_path / "a.csv").write_text('text,emotion_ids\na film,"1,2"\na film,3 4\na film,"[1, 2]"\n')
    model = ["-m", made[0] / "with", *FIXED]
    rows = good("classify", "-i", tmp_path / "a.csv", *model).rows
    scores = [row["score"] for row in rows]
    assert scores[0] == scores[2] != scores[1]
    table = good("classify", "-i", tmp_path / "a.csv", *model, "-f", "csv").out
    assert table.splitlines()[0] == "id,label,score,truncated"


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ({}, "field 'emotion_ids' not found"),
        ({"emotion_ids": None}, "field 'emotion_ids': expected a list of integers"),
        ({"emotion_ids": [1]}, "field 'emotion_ids' has 1 id, but the text has 2 words"),
        ({"emotion_ids": [1, 5]}, "field 'emotion_ids' holds an id that is not 0 to 4"),
        ({"emotion_ids": -1}, "field 'emotion_ids' holds an id that"),
        ({"emotion_ids": [1, 0.5]}, "expected a list of integers"),
        ({"emotion_ids": "x y"}, "'x y' is not a list of ids"),
    ],
)
def test_a_record_without_ids_that_fit_is_named(made, ids, said, tmp_path):
    rows = [{"text": "a film", "emotion_ids": [1, 2]}, {"text": "a film", **ids}]
    file = written(tmp_path / "a.jsonl", rows)
    done = bad("classify", "-i", file, "-m", made[0] / "with", *FIXED)
    assert f"{file}:2: " in done.error and said in done.error
    done = call("classify", "-i", file, "-m", made[0] / "with", *FIXED, "--on-error", "skip")
    assert len(done.rows) == 1 and said in done.err
    if ids:
        file = written(tmp_path / "b.jsonl", [{**row, "label": "glad"} for row in rows])
        done = bad("evaluate", file, "-m", made[0] / "with", *FIXED)
        assert f"{file}:2: " in done.error and said in done.error


def test_openvino_gives_the_numbers_of_torch(made, tmp_path):
    rows = [{"text": "a film", "emotion_ids": ids} for ids in ([1, 2], [3, 4], 1)]
    argv = ["classify", "-i", written(tmp_path / "a.jsonl", rows), "-m", made[0] / "with"]
    ours, theirs = (good(*argv, "--backend", name).rows for name in ("openvino", "torch"))
    for row, other in zip(ours, theirs, strict=True):
        assert row["label"] == other["label"] and abs(row["score"] - other["score"]) < 1e-5


def test_a_base_with_extra_embeddings_goes_on_with_its_own(made, base, tmp_path):
    file = written(tmp_path / "a.jsonl", moods(20))
    argv = ["train", file, "-m", made[0] / "with", *FIXED, "--steps", 1, "--full", "-o"]
    done = call(*argv, tmp_path / "none")
    assert done.code == 1 and "(emotion), and needs their ids\nhint: --extra emotion=F" in done.err
    both = ["--extra", "emotion=emotion_ids", "--extra", "again=emotion_ids"]
    assert call(*argv, tmp_path / "out", *both, "--layers", 2).code == 0
    config = json_in(tmp_path / "out" / "config.json")
    assert config["extra_embeddings"] == {"emotion": 5, "again": 5}
    assert good("classify", "-i", file, "-m", tmp_path / "out", *FIXED).rows


def test_a_pair_has_ids_and_rerank_has_none_for_it(base, tmp_path):
    row = {"text": "a film", "pair": "of us", "score": 0.5, "emotion_ids": [1, 2, 3, 4]}
    file = written(tmp_path / "a.jsonl", [row | {"score": at / 9} for at in range(9)])
    argv = ["train", file, "-m", base, *FIXED, "--steps", 1, "--eval-fraction", 0]
    argv += ["-o", tmp_path / "out", "--extra", "emotion=emotion_ids"]
    assert call(*argv).code == 0
    del row["score"]
    file = written(tmp_path / "b.jsonl", [row, row | {"emotion_ids": 1}])
    one, other = good("classify", "-i", file, "-m", tmp_path / "out", *FIXED).rows
    assert one != other
    done = bad("rerank", "a film", "of us", "-m", tmp_path / "out", *FIXED)
    assert "extra embeddings (emotion)" in done.error


def test_tags_of_words(base, tmp_path):
    draw, rows = random.Random(0), []
    for _ in range(60):
        words = draw.choices([*FILLER, "Ouagadougou"], k=4)
        ids = draw.choices((1, 2), k=4)
        tags = ["B-X" if index == 2 else "O" for index in ids]
        rows.append({"words": words, "syllables": ids, "tags": tags})
    file = written(tmp_path / "a.jsonl", rows)
    argv = ["train", file, "-o", tmp_path / "out", "-m", base, *FIXED, "--steps", 60]
    argv += ["--batch-size", 16, "--learning-rate", 3e-3, "--extra", "syllable=syllables"]
    assert call(*argv).code == 0
    metrics = good("evaluate", file, "-m", tmp_path / "out", "--json", *FIXED).rows[0]
    assert metrics["f1"] > 0.95, metrics
    texts = [{"text": "  ".join(row.pop("words")), **row} for row in rows]
    file = written(tmp_path / "b.jsonl", texts)
    argv = ["tag", "-i", file, "-m", tmp_path / "out", *FIXED, "--aggregation", "first"]
    found, right = good(*argv).rows, 0
    for row, said in zip(texts, found, strict=True):
        assert set(said) == {"id", "entities"}
        named = [one["word"] for one in said["entities"]]
        words = zip(row["text"].lower().split(), row["syllables"], strict=True)
        right += named == [word for word, index in words if index == 2]
    assert right > 50, right


def test_ids_of_tokens_are_as_good_as_those_of_words(made, tmp_path):
    (tokens,) = good("tokenize", "Ouagadougou film", "-m", made[0] / "with").rows
    pieces = len(tokens["input_ids"]) - 3
    rows = [
        {"text": "Ouagadougou film", "emotion_ids": ids}
        for ids in ([1, 4], [*[1] * pieces, 4], [*[2] * pieces, 4])
    ]
    model = ["-m", made[0] / "with", *FIXED]
    rated = good("classify", "-i", written(tmp_path / "a.jsonl", rows), *model).rows
    words, tokens, others = (row["score"] for row in rated)
    assert pieces > 1 and words == tokens != others
    rows[1]["emotion_ids"].append(4)
    done = bad("classify", "-i", written(tmp_path / "b.jsonl", rows), *model)
    said = f"has {pieces + 2} ids, but the text has 2 words and {pieces + 1} tokens"
    assert f"{tmp_path / 'b.jsonl'}:2: " in done.error and said in done.error


def test_names_as_others_wrote_them(made, tmp_path):
    folder = shutil.copytree(made[0] / "with", tmp_path / "model")
    config = json_in(folder / "config.json")
    del config["extra_embeddings"], config["extra_fields"]
    config |= {"emotion_vocab_size": 5, "syllable_vocab_size": 3}
    put_json(folder / "config.json", config)
    weights = load_file(folder / "model.safetensors")
    weights["bert.embeddings.emotion_embeddings.weight"] = weights.pop(
        "bert.embeddings.extra.emotion.weight"
    )
    weights["bert.embeddings.word_embeddings_syllable.weight"] = torch.zeros(3, 32)
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    rows = [{**row, "syllable_ids": 2} for row in moods(10, seed=3)]
    file = written(tmp_path / "a.jsonl", rows)
    theirs = good("classify", "-i", file, "-m", folder, *FIXED).rows
    assert theirs == good("classify", "-i", file, "-m", made[0] / "with", *FIXED).rows
