"""`bertcli train --frozen`: a head over vectors that are computed once, and who loads it."""

import shutil
import warnings
from functools import partial, partialmethod

import pytest
import torch
from example_files import reviews, scored, several, written
from front import (
    bad,
    call,
    contents,
    good,
    json_in,
    put_json,
    rows_in,
)
from model_reference import close
from sentence_folders import saved, sentence_model

import bertcli
from bertcli.engines.openvino_engine import CompiledModel
from bertcli.engines.torch_engine import TorchEngine

TEXTS = [row["text"] for row in reviews(6, seed=9)]


def argv(file, out, base, *more):
    fixed = ["-m", base, "--frozen", "--threads", 1, "--device", "cpu"]
    return ["train", file, "-o", out, *fixed, *more]


def metrics(folder):
    return json_in(folder / "manifest.json")["metrics"]


@pytest.fixture(scope="module")
def sentences(base, tmp_path_factory):
    """A small random sentence model whose vectors have the length 1."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as st

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [st.Transformer(str(base)), st.Pooling(32), st.Normalize()]
        return saved(SentenceTransformer(modules=parts), tmp_path_factory.mktemp("st") / "model")


@pytest.fixture(scope="module")
def whole(sentences, tmp_path_factory):
    place = tmp_path_factory.mktemp("frozen")
    file = written(place / "reviews.jsonl", reviews(120))
    more = ["--steps", 60, "--save-every", 20, "--learning-rate", 0.05]
    done = call(*argv(file, place / "out", sentences, *more))
    assert (done.code, done.out) == (0, ""), done
    return place / "out", file, more


def test_a_base_model_is_not_removed_by_its_own_training(whole, tmp_path):
    out, base = tmp_path / "out", tmp_path / "link"
    shutil.copytree(whole[0], out)
    base.symlink_to(out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    done = call(*argv(whole[1], out, base, "--overwrite", *whole[2]))
    error, hint = done.err.splitlines()[-2:]
    assert done.code == 1 and error == f"error: {out}: the input {base} would be overwritten"
    assert hint == "hint: write to another place, or move the input away"
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_train_and_evaluate_from_python_do_what_the_commands_do(whole, sentences, tmp_path, capfd):
    out, file, _ = whole
    numbers = {"steps": 60, "save_every": 20, "learning_rate": 0.05, "threads": 1, "device": "cpu"}
    given = (file, tmp_path / "out")
    bertcli.train(*given, model=str(sentences), frozen=True, resume=None, **numbers)
    assert capfd.readouterr().out == ""
    name = "3_Dense/model.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (out / name).read_bytes()
    report = good("evaluate", file, "-m", out, "--json", "-q", BERTCLI_BACKEND="auto").rows[0]
    assert bertcli.evaluate(file, out, quiet=True) == report
    marked = written(
        tmp_path / "marked.jsonl",
        [{**row, "text": f"[MASK] [SEP] {row['text']} [PAD]"} for row in rows_in(file)],
    )
    as_text = bertcli.evaluate(marked, out, parse_special=False, quiet=True)
    argv = ("evaluate", marked, "-m", out, "--json", "-q", "--no-parse-special")
    assert good(*argv, BERTCLI_BACKEND="auto").rows[0] == as_text
    assert bertcli.evaluate(marked, out, quiet=True) != as_text
    numbers = {"model": str(sentences), "steps": 1, "batch_size": 2, "quiet": True, "device": "cpu"}
    bertcli.train(file, tmp_path / "full", frozen=False, **numbers)
    assert not (tmp_path / "full" / "modules.json").exists()


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        ({"epoch": 3}, "unknown option 'epoch'", "did you mean epochs?"),
        ({"epochs": "x"}, "epochs='x' is not a number", ""),
        ({"steps": 0}, "steps=0 is not a whole number from 1", ""),
        ({"eval_fraction": 1.5}, "eval_fraction=1.5 is not a number from 0 to 0.9", ""),
        ({"file": "nowhere.jsonl"}, "nowhere.jsonl: file not found", ""),
        ({"class_weights": "x"}, "unknown class_weights 'x'", "one of balanced"),
        ({"input_format": "xml"}, "unknown input_format 'xml'", "one of auto, txt, jsonl"),
        ({"frozen": True, "layers": 2}, "layers requires frozen=False", "trains no layer"),
    ],
)
def test_options_from_python_are_those_of_the_command(whole, tmp_path, options, error, hint):
    with pytest.raises(bertcli.BertcliError) as refused:
        bertcli.train(**{"file": whole[1], "output": tmp_path / "out", **options})
    assert str(refused.value) == error and hint in refused.value.hint


def test_a_rule_is_learnt(whole):
    assert metrics(whole[0])["accuracy"] > 0.9
    rows = good("classify", "-m", whole[0], *TEXTS).rows
    assert [row["label"] for row in rows] == [row["label"] for row in reviews(6, seed=9)]
    assert f"bertcli classify -m {whole[0]}" in good("inspect", whole[0], COLUMNS="200").out


def test_memory_that_runs_out_is_told(whole, sentences, tmp_path, monkeypatch):
    out, file, _ = whole
    pairs = written(tmp_path / "pairs.jsonl", scored(30))

    def small(start, device, batch, reduction):
        if len(batch) > 1 and len(batch.ids) > 64:
            raise MemoryError
        return start(device, batch, reduction)

    for engine in (TorchEngine, CompiledModel):
        monkeypatch.setattr(engine, "start", partialmethod(partial(small, engine.start)))
    for given in (
        argv(file, tmp_path / "out", sentences, "--steps", 1),
        ["evaluate", file, "-m", out],
        ["evaluate", pairs, "-m", sentences],
        ["classify", "-i", file, "-m", out],
    ):
        done = call(*given)
        assert done.code == 0 and "warning: out of memory on cpu: batches of " in done.err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tag", "a good film"], "BertForTokenClassification needs classifier.weight"),
        (
            ["answer", "--question", "how", "--context", "good"],
            "BertForQuestionAnswering needs qa_outputs.weight",
        ),
        (["rerank", "a good film", "a bad one"], "gives a pair 2 scores, and rerank needs one"),
    ],
)
def test_other_commands_say_what_the_model_is_for(argv, said, whole):
    done = bad(*argv, "-m", whole[0])
    assert said in done.error


def test_one_score_of_pairs_ranks_texts(sentences, tmp_path):
    file = written(tmp_path / "pairs.jsonl", scored(60))
    assert call(*argv(file, tmp_path / "out", sentences, "--steps", 20)).code == 0
    rows = good("rerank", "a good film", "a bad one", "lovely", "-m", tmp_path / "out").rows
    pair = good("classify", "a good film", "--pair", "lovely", "-m", tmp_path / "out").rows[0]
    assert len(rows) == 2 and rows[0]["score"] >= rows[1]["score"]
    (one,) = [row for row in rows if row["text"] == "lovely"]
    assert one["score"] == pytest.approx(pair["score"], abs=1e-5)


def test_few_examples_train_a_head_alone(whole, sentences, tmp_path):
    given = [
        one
        for one in argv(whole[1], tmp_path / "out", sentences, "--steps", 2)
        if one != "--frozen"
    ]
    assert call(*given).code == 0
    assert json_in(tmp_path / "out" / "manifest.json")["method"] == "frozen"


def test_several_labels_and_scores(sentences, tmp_path):
    for rows, name in ((several(150), "accuracy"), (scored(150), "spearman")):
        file = written(tmp_path / f"{name}.jsonl", rows)
        more = ["--steps", 120, "--learning-rate", 0.05]
        assert call(*argv(file, tmp_path / name, sentences, *more)).code == 0
    assert metrics(tmp_path / "accuracy")["accuracy"] > 0.7
    (row,) = good("classify", "-m", tmp_path / "accuracy", "a good and lovely film").rows
    assert [one["label"] for one in row["labels"]] == ["good"]
    assert metrics(tmp_path / "spearman")["rows"] == 15
    assert "score" in good("classify", "-m", tmp_path / "spearman", "a", "--pair", "b").rows[0]


@pytest.mark.parity
def test_sentence_transformers_gives_the_same_logits(whole):
    from sentence_transformers import SentenceTransformer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = SentenceTransformer(str(whole[0])).encode(TEXTS)
    rows = good("classify", "-m", whole[0], "--logits", "--scores", "all", *TEXTS).rows
    close(torch.tensor([[*row["scores"].values()] for row in rows]), torch.from_numpy(theirs), 1e-4)
    vectors = good("embed", "-q", "-m", whole[0], *TEXTS).rows
    close(torch.tensor([row["embedding"] for row in vectors]), torch.from_numpy(theirs), 1e-4)


def test_other_commands_take_the_folder(whole):
    assert "Dense" in good("inspect", whole[0]).out
    assert call("inspect", whole[0], "--verify").code == 0
    rows = good("embed", "-q", "-m", whole[0], "a", "--pooling", "mean").rows
    assert len(rows[0]["embedding"]) == 32


def test_layers_belong_to_full_training(whole, sentences, tmp_path):
    done = call(*argv(whole[1], tmp_path / "out", sentences, "--layers", 1))
    assert done.code == 2 and "--layers requires --full" in done.err


def test_a_dense_layer_that_is_broken(whole, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "model")
    config = folder / "3_Dense" / "config.json"
    config.write_text(config.read_text().replace("linear.Identity", "activation.Threshold"))
    assert "activation.Threshold" in bad("classify", "-m", folder, "a").error
    config.write_text("{}")
    (folder / "3_Dense" / "model.safetensors").write_bytes(b"")
    assert (
        "3_Dense/model.safetensors: the file is empty" in bad("classify", "-m", folder, "a").error
    )


@pytest.mark.parity
@pytest.mark.parametrize("normalize", [False, True])
def test_a_model_that_truncates_its_vectors(normalize, tmp_path):
    """The head takes all dimensions, and what it gives is not truncated."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as st

    behind = [st.Pooling(32), *([st.Normalize()] if normalize else [])]
    base = saved(sentence_model(*behind), tmp_path / "base")
    config = base / "config_sentence_transformers.json"
    put_json(config, {**json_in(config), "truncate_dim": 8})
    file = written(tmp_path / "e.jsonl", reviews(30))
    assert call(*argv(file, tmp_path / "out", base, "--steps", 5)).code == 0
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    given = ["-q", "-m", tmp_path / "out", "--logits", "--scores", "all", *TEXTS]
    rows = good("classify", *given).rows
    close(torch.tensor([[*row["scores"].values()] for row in rows]), torch.from_numpy(theirs), 1e-4)


def test_train_says_who_loads_a_frozen_model(whole, base, tmp_path):
    """It has no head for transformers, which makes one at random."""
    said = "transformers would load it with a random head (--full trains one"
    assert said in call(*argv(whole[1], tmp_path / "a", base, "--steps", 1)).err
    assert said not in call(*argv(whole[1], tmp_path / "b", base, "--steps", 1), "--full").err


def test_a_model_of_the_user_is_not_overwritten(whole, base, tmp_path):
    """Only a run is; files that it did not write stay, also in folders that it wrote."""
    mine = shutil.copytree(base, tmp_path / "mine")
    before = contents(mine)
    done = bad(*argv(whole[1], mine, base, "--overwrite", "--steps", 1))
    assert done.error == f"{mine}: holds config.json, which is not of a run"
    assert contents(mine) == before
    out = shutil.copytree(whole[0], tmp_path / "out")
    for name in ("thesis.tex", "3_Dense/notes.txt", "9_Dense/notes.txt"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    done = call(*argv(whole[1], out, base, "--overwrite", "--steps", 1))
    assert done.code == 0
    kept = {name for name, data in contents(out).items() if data == b"mine"}
    assert kept == {"thesis.tex", "3_Dense/notes.txt", "9_Dense/notes.txt"}
