"""`bertcli pretrain run` through the front door: what it leaves, says and refuses."""

import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from front import (
    bad,
    call,
    good,
    json_in,
    put_json,
)
from pretrain_folders import CONFIG, VOCABULARY, config_file, lines, prepared
from safetensors.torch import load_file, save_file
from train_steps import stop_at

from bertcli.io.lock import locked
from bertcli.training import run
from bertcli.training.pretraining import SIZES
from bertcli.training.run import plot_losses

STEPS = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain")
    prepared(folder / "data", rows=80)
    config_file(folder / "config.json")
    return folder


def argv(place, out, *more, config="config.json"):
    fixed = ["--threads", 1, "--device", "cpu", "--steps", STEPS, "--batch-size", 8]
    fixed += ["--learning-rate", 1e-3, "--save-every", 2, "--log-every", 2]
    source = [] if "--init" in more else ["--config", place / config]
    return ["pretrain", "run", place / "data", *source, "-o", out, *fixed, *more]


@pytest.fixture(scope="module")
def whole(place):
    """A run from the start to the end."""
    done = call(*argv(place, place / "whole"))
    assert (done.code, done.out) == (0, ""), done
    return place / "whole", done.err.splitlines()


def same(one, other):
    names = [
        "model.safetensors",
        "config.json",
        "vocab.txt",
        f"checkpoint-{STEPS}/model.safetensors",
    ]
    names += [f"checkpoint-{STEPS}/optimizer.safetensors"]
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert lines(one) == lines(other)
    return True


# --- what a run leaves ---


def test_what_is_left(whole):
    folder, said = whole
    assert sorted(path.name for path in folder.iterdir()) == [
        *("checkpoint-4", "checkpoint-6", "config.json", "log.jsonl", "loss.svg"),
        *("model.safetensors", "tokenizer_config.json", "vocab.txt"),
    ]
    assert [line.split()[:3] for line in said] == [["note:", "step", f"{at}/6"] for at in (2, 4, 6)]
    assert "tokens/s" in said[0]
    assert "perplexity" in said[-1] and "masked accuracy" in said[-1]
    log = lines(folder)
    assert [line["step"] for line in log] == [2, 4, 6, 6]
    assert {"loss", "mlm_loss", "nsp_loss", "lr", "grad_norm", "epoch"} < set(log[0])
    assert log[0]["loss"] == pytest.approx(log[0]["mlm_loss"] + log[0]["nsp_loss"])
    assert log[-1]["rows"] == 4  # 5 % of 80
    assert json_in(folder / "config.json")["vocab_size"] == VOCABULARY


def test_the_picture_has_the_losses_of_the_log(whole):
    root = ElementTree.fromstring((whole[0] / "loss.svg").read_text())
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"loss", "masked words", "held out", "step"} <= texts
    assert len([line for line in root.iter() if (line.get("id") or "").startswith("line2d")]) >= 3


def test_the_picture_depends_on_the_log_alone(whole, tmp_path):
    first = plot_losses(whole[0] / "log.jsonl")
    assert first == (whole[0] / "loss.svg").read_bytes() and b"Date" not in first
    broken = tmp_path / "log.jsonl"
    broken.write_text('{"loss')
    assert b"<svg" in plot_losses(broken)


def test_without_matplotlib_a_run_is_whole_but_for_its_picture(place, whole, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = call(*argv(place, place / "undrawn"))
    assert done.code == 0
    assert not (place / "undrawn" / "loss.svg").exists()
    assert same(whole[0], place / "undrawn")
    monkeypatch.undo()  # once it is installed, the finished run gets its picture
    assert call(*argv(place, place / "undrawn", "--resume")).code == 0
    assert "loss.svg" in {path.name for path in (place / "undrawn").iterdir()}


@pytest.mark.parity
def test_the_result_loads_in_transformers(whole):
    from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForPreTraining

    model, info = BertForPreTraining.from_pretrained(whole[0], output_loading_info=True)
    assert not any(info.values())
    weights = load_file(whole[0] / "model.safetensors")
    for name, weight in model.named_parameters():
        assert torch.equal(weight, weights[name])
    words = AutoModelForMaskedLM.from_pretrained(whole[0])
    assert torch.equal(words.cls.predictions.bias, weights["cls.predictions.bias"])
    ids = AutoTokenizer.from_pretrained(whole[0])("I love NLP!").input_ids
    assert ids == good("tokenize", "-m", whole[0], "I love NLP!").ids[0]


def test_the_result_loads_in_bertcli(whole):
    done = call("embed", "-q", "-m", whole[0], "I love NLP!")
    assert done.code == 0 and len(done.rows[0]["embedding"]) == CONFIG["hidden_size"]
    verified = call("inspect", whole[0], "--verify")
    assert verified.code == 0 and "BertForPreTraining" in verified.out, verified
    assert call("inspect", whole[0] / "checkpoint-6", "--verify").code == 0


def test_the_loss_falls(place):
    """Words go up by one, so that neighbours tell what was masked."""
    more = ["--steps", 40, "--learning-rate", 1e-2, "--log-every", 10, "--save-every", 500]
    assert call(*argv(place, place / "learnt", *more, "--batch-size", 24)).code == 0
    found = [line["mlm_loss"] for line in lines(place / "learnt") if "loss" in line]
    assert found[-1] < found[0] - 0.7 < 5.8 - 0.7  # guessing is ln 347 = 5.8


def test_init_begins_with_these_weights(place, whole):
    more = ["--init", whole[0], "--learning-rate", 0]
    assert call(*argv(place, place / "more", *more)).code == 0
    old, new = (load_file(one / "model.safetensors") for one in (whole[0], place / "more"))
    assert all(torch.equal(old[name], new[name]) for name in old)


def test_init_counts_by_the_weights_in_use(place, whole, tmp_path):
    init = shutil.copytree(whole[0], tmp_path / "init", ignore=shutil.ignore_patterns("check*"))
    more = argv(place, tmp_path / "out", "--init", init, "--steps", 1)
    assert call(*more).code == 0
    (init / "pytorch_model.bin").write_bytes(b"not used beside model.safetensors")
    assert call(*more, "--resume").code == 0
    save_file(load_file(init / "model.safetensors"), init / "model.safetensors", {"of": "others"})
    done = call(*more, "--resume")
    assert done.code == 1 and "init_sha256" in done.err, done


def test_sizes_have_names(place):
    more = ["--config", "tiny", "--steps", 1, "--batch-size", 1, "--eval-fraction", 0]
    assert call(*argv(place, place / "tiny", *more)).code == 0
    said = json_in(place / "tiny" / "config.json")
    assert (said["num_hidden_layers"], said["hidden_size"]) == (2, 128)
    assert (said["num_attention_heads"], said["intermediate_size"]) == (2, 512)
    assert [line["step"] for line in lines(place / "tiny")] == [1]


def test_other_texts_to_judge_by(place):
    prepared(place / "held", rows=9, seed=5)
    more = ["--eval-dir", place / "held", "--eval-every", 3]
    assert call(*argv(place, place / "judged", *more)).code == 0
    found = [line for line in lines(place / "judged") if "eval_loss" in line]
    assert [(line["step"], line["rows"]) for line in found] == [(3, 9), (6, 9)]


def test_quiet(place):
    good(*argv(place, place / "quiet", "--steps", 1, "-q"))


# --- going on ---


@pytest.mark.parametrize("number", [1, 3, 5])
def test_interrupted_and_resumed(place, whole, tmp_path, monkeypatch, number):
    stop_at(monkeypatch, number)
    done = call(*argv(place, tmp_path / "out"))
    assert done.code == 130
    last = f"the last checkpoint is checkpoint-{number - 1}" if number > 2 else "no checkpoint"
    assert last in done.err.splitlines()[-1] and "--resume" in done.err.splitlines()[-1]
    assert not (tmp_path / "out" / "model.safetensors").exists()
    monkeypatch.undo()
    assert call(*argv(place, tmp_path / "out", "--resume")).code == 0
    assert same(tmp_path / "out", whole[0])


def test_float16_goes_on_with_its_scale(place, tmp_path, monkeypatch):
    more = ["--dtype", "float16"]
    assert call(*argv(place, tmp_path / "a", *more)).code == 0
    stop_at(monkeypatch, 3)
    assert call(*argv(place, tmp_path / "b", *more)).code == 130
    monkeypatch.undo()
    assert call(*argv(place, tmp_path / "b", *more, "--resume")).code == 0
    assert same(tmp_path / "a", tmp_path / "b")


def test_overwrite_begins_anew(place, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "out")
    more = ["--overwrite", "--steps", 3]
    assert call(*argv(place, tmp_path / "out", *more)).code == 0
    left = sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*"))
    assert left == ["checkpoint-2", "checkpoint-3"]


@pytest.mark.parametrize("number", [1, 3])
def test_the_note_of_an_interrupted_overwrite_has_options_that_go_together(
    place, whole, tmp_path, monkeypatch, number
):
    shutil.copytree(whole[0], tmp_path / "out")
    stop_at(monkeypatch, number)
    done = call(*argv(place, tmp_path / "out", "--overwrite"))
    advice = "continue with --resume instead of --overwrite" if number > 2 else "--overwrite starts"
    assert done.code == 130
    assert advice in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--learning-rate", 2e-3], "options.learning_rate was 0.001, now 0.002"),
        (["--seed", 7], "options.seed was 0, now 7"),
        (["--steps", 9], "options.steps was 6, now 9"),
        (["--batch-size", 4], "options.batch_size was 8, now 4"),
        (["--eval-fraction", 0.5], "options.eval_fraction was 0.05, now 0.5"),
        (["--config", "tiny"], "config.hidden_size was 32, now 128"),
    ],
)
def test_other_numbers_are_refused(place, whole, more, said):
    done = bad(*argv(place, whole[0], *more, "--resume"))
    assert said in done.error and "checkpoint-6" in done.error
    assert "--overwrite" in done.hint


def test_other_instances_are_refused(place, whole, tmp_path):
    (tmp_path / "place").mkdir()
    prepared(tmp_path / "place" / "data", rows=80, seed=3)
    config_file(tmp_path / "place" / "config.json")
    done = bad(*argv(tmp_path / "place", whole[0], "--resume"))
    assert "instances_sha256 was" in done.error


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 300}, "vocab_size 300 does not match the instances: their"),
        ({"vocab_size": 30522}, "has 347 tokens"),
        ({"max_position_embeddings": 20}, "max_position_embeddings 20 is less than the 24 tokens"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of"),
        ({"hidden_size": 10**9}, "memory"),
        ({"is_decoder": True}, "decoders are not supported in pretraining"),
        ({"model_type": "roberta"}, "RoBERTa has no such head"),
    ],
)
def test_a_config_that_cannot_be_trained(place, tmp_path, changes, said):
    config_file(place / "bad.json", **changes)
    assert said in bad(*argv(place, tmp_path / "out", config="bad.json")).error
    assert not (tmp_path / "out").exists()


def test_a_config_that_is_nested_too_deeply_makes_nothing(place, tmp_path):
    config_file(place / "bad.json", another="deep")
    text = (place / "bad.json").read_text().replace('"deep"', "[" * 600 + "]" * 600)
    (place / "bad.json").write_text(text)
    assert "too deeply" in bad(*argv(place, tmp_path / "out", config="bad.json")).error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "bad.json: file not found"),
        ("{", "bad.json: not valid JSON"),
        ('{"config": {"hidden_size": 32}}', "bad.json: names none of hidden_size, num_hidden_lay"),
    ],
)
def test_a_file_that_is_no_config(place, tmp_path, text, said):
    (place / "bad.json").unlink(missing_ok=True)
    if text:
        (place / "bad.json").write_text(text)
    assert said in bad(*argv(place, tmp_path / "out", config="bad.json")).error


def flipped(data):
    rows = data / "instances.bin"
    rows.write_bytes(rows.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: (data / "instances.json").unlink(), "instances.json"),
        (flipped, "was changed after it was made"),
        (
            lambda data: (data / "vocab.txt").write_text("[PAD]\n"),
            "vocab.txt: was changed after it was made",
        ),
    ],
)
def test_instances_that_are_damaged(place, tmp_path, change, said):
    shutil.copytree(place / "data", tmp_path / "data")
    shutil.copy(place / "config.json", tmp_path)
    change(tmp_path / "data")
    assert said in bad(*argv(tmp_path, tmp_path / "out")).error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("file", [], "cannot be written: File exists"),
        ("missing/out", [], "cannot be written: No such file or directory"),
        ("\udcffout", [], "the path is not UTF-8"),
        ("there", [], "folder already exists"),
        ("there", ["--resume"], "no run to resume in this folder"),
        ("out", ["--init", "there"], "no config.json in this folder"),
    ],
)
def test_places_where_nothing_can_be_trained(place, tmp_path, monkeypatch, name, more, said):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("there").mkdir()
    Path("there", "thesis.tex").touch()
    assert said in bad(*argv(place, Path(name), *more)).error
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--device", "cuda:7"], "device 'cuda:7' not found"),
        (["--warmup-steps", 6], "--warmup-steps 6 leaves none of the 6 steps"),
        (["--resume", "--overwrite"], "--resume cannot be combined with --overwrite"),
    ],
)
def test_wrong_usage(place, tmp_path, more, said):
    assert said in bad(*argv(place, tmp_path / "out", *more), code=2).error


def test_what_a_run_reads_is_not_where_it_writes(place, whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole[0], out)
    before = sorted(out.rglob("*"))
    given = ["pretrain", "run", place / "data", "--init", out, "-o", out, "--overwrite"]
    assert bad(*given).error == f"{out}: the input {out} would be overwritten"
    given = ["pretrain", "run", place / "data", "--init", out, "-o", place, "--overwrite"]
    assert bad(*given).error == f"{place}: the input {place / 'data'} would be overwritten"
    assert sorted(out.rglob("*")) == before


def test_one_run_at_a_time_in_a_folder(place, whole, tmp_path):
    out = tmp_path / "out"
    with locked(out / ".lock", out):  # as a run holds it
        done = bad(*argv(place, out, "--overwrite"))
    assert done.error == f"{out}: another bertcli is writing it"
    assert done.hint == "wait for it to end, or choose another name"


def test_a_finished_run_says_so(place, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").unlink()  # killed before the model was there
    done = call(*argv(place, tmp_path / "out", "--resume"))
    assert (done.code, done.out) == (0, "")
    assert "note: the run is complete: checkpoint-6 is its last step" in done.err
    assert same(tmp_path / "out", whole[0])


def test_hints_are_about_what_was_given(place, tmp_path):
    for text, said in (("{", ", ".join(SIZES)), ('{"num_attention_heads": 5}', "fix the config")):
        (place / "bad.json").write_text(
            json.dumps(CONFIG | json.loads(text)) if "5" in text else text
        )
        assert said in bad(*argv(place, tmp_path / "out", config="bad.json")).hint
    assert bad(*argv(place, Path("/proc/none"))).hint == "create the folder first"
    shutil.copytree(place / "data", tmp_path / "data")
    given = argv(place, tmp_path / "out", "--epochs", 0)
    del given[given.index("--steps") : given.index("--steps") + 2]
    assert bad(*given, code=2).error == "no steps to train"


def test_config_or_init(place, tmp_path):
    done = bad("pretrain", "run", place / "data", "-o", tmp_path / "out", code=2)
    assert done.error == "give either --config or --init"


def test_a_loss_that_is_no_number(place, tmp_path):
    more = ["--learning-rate", 1e30, "--max-grad-norm", 0, "--warmup-steps", 3]
    done = call(*argv(place, tmp_path / "out", *more))
    error, hint = done.err.splitlines()[-2:]
    assert done.code == 1 and error.startswith("error: step 3: the loss is nan")
    assert error.endswith("the last checkpoint is checkpoint-2")
    assert "--learning-rate" in hint


@pytest.mark.parametrize("call_of", ["save_tensors", "put_folder"])
def test_a_full_disk_leaves_the_last_good_checkpoint(place, whole, tmp_path, monkeypatch, call_of):
    real, left = getattr(run, call_of), [1]

    def full(*given):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(*given)

    monkeypatch.setattr(run, call_of, full)
    done = call(*argv(place, tmp_path / "out"))
    error, hint = done.err.splitlines()[-2:]
    assert done.code == 1 and "cannot be written: No space left on device" in error
    assert "free disk space" in hint and "--resume" in hint
    assert not list((tmp_path / "out").glob(".*.tmp"))
    monkeypatch.undo()
    assert call(*argv(place, tmp_path / "out", "--resume")).code == 0
    assert same(tmp_path / "out", whole[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 2}, "was changed, or written by another version of bertcli"),
        ({"sha256": {}}, "was changed, or written by another version of bertcli"),
        ({"version": 1}, "was changed, or written by another version of bertcli"),
    ],
)
def test_a_state_that_was_changed_is_named(place, whole, tmp_path, change, message):
    shutil.copytree(whole[0], tmp_path / "out")
    file = tmp_path / "out" / "checkpoint-6" / "training_state.json"
    put_json(file, json_in(file) | change)
    done = bad(*argv(place, tmp_path / "out", "--resume"))
    assert f"training_state.json: {message}" in done.error


def test_a_line_that_is_none_of_a_log_is_not_drawn(tmp_path):
    log = tmp_path / "log.jsonl"
    for line in ("[" * 99999, "\0", "7"):
        log.write_text(f'{{"step": 1, "loss": 2.0}}\n{line}\n')
        assert plot_losses(log).startswith(b"<?xml")
