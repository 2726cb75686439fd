"""`bertcli train --full`: the step of transformers, and what a run leaves, says and refuses."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from example_files import reviews, scored, several, written
from front import (
    bad,
    call,
    good,
    json_in,
    jsonl,
    process,
    put_json,
)
from model_reference import close
from nested_models import inside_a_sentence_model
from pretrain_folders import STILL, lines
from safetensors.torch import load_file
from task_models import SIZES, tokenizer
from train_steps import argv as train
from train_steps import check_step, opened, standing

from bertcli.training.fine_tuning import head_task

ROWS = {"classify": reviews, "multilabel": several, "regress": scored}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A model as training begins: the wide weights of the others saturate, and one rule is lost."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES | STILL, initializer_range=0.1)
    folder = tmp_path_factory.mktemp("fresh")
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "reviews.jsonl", reviews())


def argv(file, out, base, *more):
    return train(file, out, base, "--full", "--learning-rate", 1e-2, *more)


# --- one step ---


def their_step(task, base, rows, numbers):
    """Loss and gradients of transformers, from its own tokenizer and the same weights."""
    config = transformers.BertConfig.from_pretrained(
        base,
        num_labels=len(task.identity["labels"]),
        problem_type=task.identity["config"]["problem_type"],
        **STILL,
    )
    theirs = transformers.BertForSequenceClassification(config)
    theirs.load_state_dict(task.build(None).state_dict())
    rows = [rows[number] for number in numbers]
    pairs = [row["pair"] for row in rows] if "pair" in rows[0] else None
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    batch = tokenizer([row["text"] for row in rows], pairs, padding=True, return_tensors="pt")
    targets = torch.from_numpy(task.objective.targets[numbers])
    loss = theirs(**batch, labels=targets).loss
    loss.backward()
    return loss.item(), {name: one.grad for name, one in theirs.named_parameters()}


@pytest.mark.parity
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("parts", [1, 3])
def test_a_step_is_that_of_transformers(kind, parts, base, tmp_path):
    rows = ROWS[kind](30)
    task = opened(head_task, rows, tmp_path, base, 12)
    check_step(standing(task, parts), lambda some: their_step(task, base, rows, some))


@pytest.mark.parity
def test_class_weights_and_smoothing_are_those_of_torch(base, tmp_path):
    rows = [row for row in reviews(60) if row["label"] == "good"] + reviews(12, seed=3)
    task = opened(
        head_task, rows, tmp_path, base, 12, class_weights="balanced", label_smoothing=0.1
    )
    counts = [sum(row["label"] == name for row in rows) for name in ("bad", "good")]
    assert task.identity["labels"] == ["bad", "good"]
    expected = torch.tensor([len(rows) / (2 * count) for count in counts])
    logits, targets = torch.randn(len(rows), 2), torch.from_numpy(task.objective.targets)
    theirs = torch.nn.functional.cross_entropy(logits, targets, expected, label_smoothing=0.1)
    numbers = np.arange(len(rows))
    (total,), (count,) = task.objective.sums(logits, numbers), task.objective.counts(numbers)
    close(total / count, theirs)


def test_layers_below_are_as_they_were(file, base, tmp_path):
    assert call(*argv(file, tmp_path / "out", base, "--steps", 3, "--layers", 1)).code == 0
    ours, theirs = (load_file(one / "model.safetensors") for one in (tmp_path / "out", base))
    for name, weight in ours.items():
        still = ".embeddings." in name or ".layer.0." in name
        if name.startswith("bert.") and "pooler" not in name:
            assert torch.equal(weight, theirs[name]) == still, name


# --- what a run leaves ---


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    place = tmp_path_factory.mktemp("train")
    file = written(place / "reviews.jsonl", reviews())
    done = call(*argv(file, place / "out", base, "--steps", 12, "--save-every", 2))
    assert (done.code, done.out) == (0, ""), done
    return place / "out", file, done.err


def test_what_is_left(whole):
    folder, _, said = whole
    assert "note: new head for " in said
    left = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "log.jsonl", "manifest.json"} < left
    manifest = json_in(folder / "manifest.json")
    assert manifest["task"] == "classify" and manifest["labels"] == ["bad", "good"]
    assert manifest["examples"] == {"train": 54, "eval": 6}
    evaluations = [line for line in lines(folder) if "eval_loss" in line]
    best = min(evaluations, key=lambda line: line["eval_loss"])
    assert manifest["metrics"] == best


@pytest.mark.parity
def test_the_result_loads_in_transformers_and_in_classify(whole):
    folder = whole[0]
    theirs = transformers.pipeline("text-classification", model=str(folder))
    texts = [row["text"] for row in reviews(5, seed=9)]
    for row, expected in zip(
        good("classify", "-m", folder, *texts).rows, theirs(texts), strict=True
    ):
        assert row["label"] == expected["label"]
        assert row["score"] == pytest.approx(expected["score"], abs=1e-5)


def learnt(kind, base, tmp_path):
    """What `evaluate` finds on other examples of a rule."""
    file = written(tmp_path / "examples.jsonl", ROWS[kind](300))
    more = ["--steps", 200, "--batch-size", 16, "--learning-rate", 3e-3, "--eval-every", 50]
    assert call(*argv(file, tmp_path / "out", base, *more)).code == 0
    other = written(tmp_path / "other.jsonl", ROWS[kind](100, seed=8))
    (found,) = good("evaluate", other, "-m", tmp_path / "out").rows
    assert found["task"] == kind
    return found


@pytest.mark.parametrize("kind", ["classify", "multilabel"])
def test_a_rule_is_learnt(kind, fresh, tmp_path):
    found = learnt(kind, fresh, tmp_path)
    assert found["accuracy"] > 0.99 and found["micro_f1"] > 0.99, found


def test_a_rule_of_pairs_is_learnt(base, tmp_path):
    assert learnt("regress", base, tmp_path)["spearman"] > 0.8


def test_scores_may_be_as_large_as_numbers_are(base, tmp_path):
    """Their squares, which metrics are made of, are beyond float32."""
    large = [row | {"score": 1e30 * row["score"]} for row in scored(10)]
    file, out = written(tmp_path / "usual.jsonl", scored(10)), tmp_path / "out"
    held = written(tmp_path / "large.jsonl", large)
    more = ("--task", "regress", "--steps", 2, "--eval", held, "-q")
    good("train", file, "-m", base, "-o", out, *more)
    logged = (out / "log.jsonl").read_text().splitlines()
    found = json.loads(logged[-1], parse_constant=pytest.fail)  # Infinity is no JSON
    assert found["mse"] > 1e50 and found["eval_loss"] is None
    kept = json.loads((out / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert kept["metrics"]["mse"] > 1e50 and kept["metrics"]["eval_loss"] is None
    (out / "loss.svg").unlink()
    good("train", file, "-m", base, "-o", out, *more, "--resume")
    assert "<svg" in (out / "loss.svg").read_text()


# --- what goes wrong, and what is said ---


def test_early_stopping(file, base, tmp_path):
    more = ["--steps", 40, "--eval-every", 1, "--patience", 2, "--learning-rate", 0]
    assert call(*argv(file, tmp_path / "out", base, *more)).code == 0
    evaluated = [line["step"] for line in lines(tmp_path / "out") if "eval_loss" in line]
    assert evaluated == [1, 2, 3]  # the first of equals stays the best
    assert (tmp_path / "out" / "checkpoint-3").is_dir()
    done = call(*argv(file, tmp_path / "out", base, *more, "--resume"))
    assert done.code == 0 and "the run is complete" in done.err


def test_a_head_for_other_labels_is_made_anew_and_said(file, models, tmp_path):
    other = models("BertForSequenceClassification", **STILL)
    done = call(*argv(file, tmp_path / "out", other, "--steps", 1))
    assert done.code == 0
    assert "new head for " in done.err


def with_rows(*rows):
    return [*reviews(20), *rows]


def test_a_label_of_the_evaluation_file_that_is_unknown(file, base, tmp_path):
    other = written(tmp_path / "eval.jsonl", [{"text": "a", "label": "neutral"}])
    done = call(*argv(file, tmp_path / "out", base, "--eval", other))
    error, hint = done.err.splitlines()[-2:]
    assert done.code == 1
    assert error == (f"error: {other}:1: the label 'neutral' does not occur in the training data")
    assert hint == "hint: labels: bad, good"


def test_what_is_truncated_is_counted(base, tmp_path):
    rows = reviews(20)
    file = written(tmp_path / "e.jsonl", [*rows, {"text": "word " * 90, "label": "bad"}])
    other = written(tmp_path / "eval.jsonl", rows[:5])
    done = call(*argv(file, tmp_path / "out", base, "--steps", 1, "--eval", other))
    assert done.code == 0
    assert re.search(r"warning: 1 of 26 texts truncated to 64 tokens \(\d+ dropped\)", done.err)


def test_skipped_records(base, tmp_path):
    file = written(tmp_path / "e.jsonl", with_rows({"text": "a", "label": None}))
    done = call(*argv(file, tmp_path / "out", base, "--steps", 1, "--on-error", "skip"))
    assert "skipped: " in done.err and (tmp_path / "out" / "config.json").exists()
    assert done.code == 1


def test_text_files_have_no_fields(base, tmp_path):
    (tmp_path / "a.txt").write_text("hello\n")
    assert (
        "a.txt: the input is read as txt, which has no fields"
        in bad(*argv(tmp_path / "a.txt", tmp_path / "o", base), code=2).error
    )
    for place, said in ((tmp_path / "nothing", "file not found"), (tmp_path, "is a folder")):
        assert f"{place}: {said}" == bad(*argv(place, tmp_path / "o", base)).error
        assert f"{place}: {said}" == bad("evaluate", place, "-m", base).error


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_tables_are_examples_too(form, base, tmp_path):
    comma = {"csv": ",", "tsv": "\t"}[form]
    rows = [comma.join(("text", "label"))]
    rows += [comma.join((row["text"], row["label"])) for row in reviews(20)]
    (tmp_path / f"e.{form}").write_text("\n".join(rows) + "\n")
    given = argv(tmp_path / f"e.{form}", tmp_path / "out", base, "--steps", 1)
    assert call(*given).code == 0


def test_stdin_is_jsonl(base, tmp_path):
    stdin = jsonl(reviews(20))
    assert call(*argv("-", tmp_path / "out", base, "--steps", 1), stdin=stdin).code == 0


def test_the_tokenizer_of_a_bert_inside_a_sentence_model_comes_along(fresh, file, tmp_path):
    model = inside_a_sentence_model(fresh, tmp_path / "sbert")
    assert call(*argv(file, tmp_path / "out", model, "--steps", 2)).code == 0
    (row,) = good("classify", "a good room", "-m", tmp_path / "out").rows
    assert {"label", "score"} <= row.keys()


# --- what is not the run's own ---


def snapshot(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def refused(given, folder, said):
    """A run that is refused, and leaves a folder as it was."""
    before = snapshot(folder)
    done = call(*given)
    assert done.code == 1 and said in done.err, done
    assert snapshot(folder) == before


def test_a_folder_without_a_checkpoint_is_not_resumed(whole, base, tmp_path):
    out, file = tmp_path / "out", whole[1]
    shutil.copytree(whole[0], out)
    for path in out.glob("checkpoint-*"):
        shutil.rmtree(path)
    more = ["--steps", 2, "--resume"]
    refused(argv(file, out, base, *more), out, "no run to resume in this folder")
    project = tmp_path / "project"
    (project / "1_Data").mkdir(parents=True)
    (project / "checkpoint-1").mkdir()
    for name in ("log.jsonl", "README.md", "1_Data/train.jsonl", "checkpoint-1/notes.txt"):
        (project / name).write_text('{"step": 1, "loss": 2.0}\n')
    refused(argv(file, project, base, *more), project, "no run to resume in this folder")
    more = ["--steps", 2, "--overwrite"]
    refused(argv(file, project, base, *more), project, "holds checkpoint-1, which is not of a run")
    shutil.rmtree(project / "checkpoint-1")
    assert call(*argv(file, project, base, *more)).code == 0
    assert (project / "1_Data/train.jsonl").exists() and (project / "config.json").exists()


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("file", "best/data.jsonl"),
        ("eval", "1_Data/d.jsonl"),
        ("symlink", "log.jsonl"),
        ("link", "data.jsonl"),
    ],
)
def test_examples_in_the_output_folder_are_refused(way, name, whole, base, tmp_path):
    out, file = tmp_path / "out", tmp_path / "examples.jsonl"
    shutil.copytree(whole[0], out)
    data = out / name
    data.parent.mkdir(exist_ok=True)
    written(data, reviews(20))
    link = tmp_path / "link.jsonl"
    if way == "symlink":
        link.symlink_to(data)
    elif way == "link":
        link.hardlink_to(data)
    inputs = {"file": (data,), "eval": (written(file, reviews(20)), "--eval", data)}
    first, *rest = inputs.get(way, (link,))
    given = argv(first, out, base, *rest, "--steps", 2, "--overwrite")
    refused(given, out, "would be overwritten")


def test_a_flipped_bit_is_not_resumed(whole, base, tmp_path):
    out, name = tmp_path / "out", "checkpoint-12/best.safetensors"
    shutil.copytree(whole[0], out)
    flipped = bytearray((out / name).read_bytes())
    flipped[-9] ^= 1
    (out / name).write_bytes(flipped)
    given = argv(whole[1], out, base, "--steps", 12, "--save-every", 2, "--resume")
    done = call(*given)
    assert done.code == 1
    assert f"{out / name}: was changed after it was made" in done.err


# --- labels ---


def test_a_head_with_the_same_labels_in_another_order_is_kept(whole, tmp_path):
    folder, file, _ = whole
    start = shutil.copytree(folder, tmp_path / "start")
    config = json_in(start / "config.json")
    config |= {"id2label": {"0": "good", "1": "bad"}, "label2id": {"good": 0, "bad": 1}}
    put_json(start / "config.json", config)
    done = call(*argv(file, tmp_path / "out", start, "--steps", 1, "--learning-rate", 0))
    assert done.code == 0 and "new head" not in done.err
    ours, theirs = (load_file(Path(one) / "model.safetensors") for one in (tmp_path / "out", start))
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    texts = [row["text"] for row in reviews(9, seed=5)]
    given = ["-q", "--scores", "all", *texts]
    assert call("classify", "-m", tmp_path / "out", *given).out == (
        call("classify", "-m", start, *given).out
    )
    manifest = json_in(tmp_path / "out/manifest.json")
    assert manifest["labels"] == ["good", "bad"]
    (report,) = call("evaluate", file, "-m", tmp_path / "out").rows
    logged = [line for line in lines(tmp_path / "out") if "accuracy" in line]
    assert report["labels"] == ["good", "bad"] and logged


def test_integer_labels_are_the_classes_of_a_head_without_names(models, tmp_path):
    start = models("BertForSequenceClassification", num_labels=2, **STILL)
    rows = [{**row, "label": int(row["label"] == "good")} for row in reviews(30)]
    file = written(tmp_path / "e.jsonl", rows)
    more = ["--steps", 1, "--learning-rate", 0, "--eval", file]
    done = call(*argv(file, tmp_path / "out", start, *more))
    assert done.code == 0 and "new head" not in done.err
    ours, theirs = (load_file(Path(one) / "model.safetensors") for one in (tmp_path / "out", start))
    assert torch.equal(ours["classifier.weight"], theirs["classifier.weight"])
    metrics = json_in(tmp_path / "out/manifest.json")["metrics"]
    (report,) = call("evaluate", file, "-m", tmp_path / "out").rows
    assert report["accuracy"] == pytest.approx(metrics["accuracy"], rel=1e-8)


def test_equal_numbers_as_labels_are_in_one_order(base, tmp_path):
    rows = [{"text": f"a {at}", "label": label} for at in range(4) for label in ("1", "01", "001")]
    file = written(tmp_path / "e.jsonl", rows)
    out, seed = tmp_path / "made", {"PYTHONHASHSEED": "3"}  # a set has them in another order
    done = process(*argv(file, out, base, "--steps", 1), env=seed)
    assert done.code == 0, done
    assert json_in(out / "manifest.json")["labels"] == ["001", "01", "1"]
