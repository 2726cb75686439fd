"""Each family through the front door: every command that runs a model, with one small model each.

Their tokenizer is the default model's; what families have of their own is tested in tokenizing/.
"""

import inspect
import json
import re
import shutil

import numpy as np
import pytest
import torch
import transformers
from family_models import ROWS
from front import (
    bad,
    call,
    good,
    json_in,
    jsonl,
    peak,
    put_json,
)
from model_reference import close, randomise
from task_models import SIZES, labels, tokenizer

from bertcli.families.registry import FAMILIES

pytestmark = pytest.mark.parity

TEXTS = ["I love NLP!", "the bank of the river", "no", "Ouagadougou is a city, and a large one"]
NAMES = labels("B-LOC", "O", "B-PER")
FEATURES = {
    "classify": "ForSequenceClassification",
    "tag": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
    "fill-mask": "ForMaskedLM",
    "score": "ForMaskedLM",
    "choose": "ForMultipleChoice",
}
GIVEN = {
    "classify": TEXTS,
    "tag": TEXTS,
    "answer": ["--question", "what?", "--context", TEXTS[1]],
    "fill-mask": ["a [MASK] of [MASK]", "the [MASK]"],
    "score": TEXTS,
    "choose": TEXTS,
}
OWN = [row for row in ROWS if not row.alike]
CASES = [(row, command) for row in OWN for command in FEATURES]


@pytest.fixture(autouse=True)
def one_thread(threads):
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Make folders of transformers' models, each once."""
    root, made = tmp_path_factory.mktemp("families"), {}

    def folder(row, ending="Model"):
        path = root / row.model_type / ending
        if path not in made:
            page = FAMILIES[row.model_type]
            said = {page.key(key): size for key, size in SIZES.items()}
            said |= {"type_vocab_size": 2, **row.more}  # 2, as the tokenizer gives pairs
            more = (
                NAMES if ending in ("ForTokenClassification", "ForSequenceClassification") else {}
            )
            config = transformers.AutoConfig.for_model(
                row.model_type, **said, **more, pad_token_id=0
            )
            model = randomise(getattr(transformers, row.prefix + ending)(config))
            model.save_pretrained(path)
            tokenizer().save_pretrained(path)
            made[path] = model.eval()
        return path

    folder.models = made
    return folder


def ids_of(text):
    return torch.tensor([tokenizer()(text)["input_ids"]])


@pytest.mark.parametrize("row", OWN, ids=lambda row: row.model_type)
@torch.no_grad()
def test_vectors_are_those_of_transformers(row, family, tmp_path):
    folder, out = family(row), tmp_path / "out.npy"
    model = family.models[folder]
    good("embed", "-q", "-m", folder, "--no-normalize", "-o", out, *TEXTS)
    wanted = [model(ids_of(text)).last_hidden_state[0].mean(0) for text in TEXTS]
    close(torch.from_numpy(np.load(out)), torch.stack(wanted))
    good("embed", "-q", "-m", folder, "--pooling", "cls", "--no-normalize", "-o", out, TEXTS[0],
         "--overwrite")  # fmt: skip
    close(torch.from_numpy(np.load(out)), model(ids_of(TEXTS[0])).last_hidden_state[:, 0])
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    rows = good("similar", "-q", "-m", folder, TEXTS[1], "--corpus", corpus, "-f", "jsonl").rows
    assert TEXTS[1] in str(rows[0]) and len(rows) in (1, len(TEXTS)), rows


@pytest.mark.parametrize(("row", "command"), CASES, ids=lambda it: getattr(it, "model_type", it))
def test_heads_answer_as_transformers(row, command, family):
    if row.prefix + FEATURES[command] not in FAMILIES[row.model_type].classes:
        return
    folder = family(row, FEATURES[command])
    rows = good(command, "-m", folder, *GIVEN[command], "-f", "jsonl").rows
    assert rows
    if command == "classify":
        with torch.no_grad():
            logits = [family.models[folder](ids_of(text)).logits[0] for text in TEXTS]
        for found, wanted in zip(rows, logits, strict=True):
            close(torch.tensor(found["score"]), wanted.softmax(-1).max())
            assert found["label"] == NAMES["id2label"][int(wanted.argmax())]


@pytest.mark.parametrize("row", OWN, ids=lambda row: row.model_type)
def test_a_model_is_inspected_and_its_attention_drawn(row, family, tmp_path):
    folder = family(row)
    (said,) = [json.loads(good("inspect", folder, "--json").out)]
    assert said["family"] == FAMILIES[row.model_type].title
    assert not said["fit"]["missing"] and not said["fit"]["unused"]
    model = family.models[folder]
    assert said["parameters"]["total"] == sum(one.numel() for one in model.parameters())
    shown = good("inspect", folder).out
    assert re.search(rf"family +{said['family']} *\n", shown)
    assert f"name {said['architecture']['name']}" in shown
    assert good("inspect", folder, "--tree").out
    assert good("inspect", folder, "--verify").code == 0
    maps = json.loads(good("inspect", folder, "--attention", TEXTS[1], "--json").out)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = model(ids_of(TEXTS[1]), output_attentions=True).attentions
    got = [[head["weights"] for head in layer["heads"]] for layer in maps["layers"]]
    close(torch.tensor(got), torch.cat(wanted))
    good("inspect", folder, "-q", "--attention", TEXTS[1], "-o", tmp_path / "maps.svg")


@pytest.mark.parametrize("row", OWN, ids=lambda row: row.model_type)
def test_a_model_is_trained_and_the_result_is_of_its_family(row, family, tmp_path):
    file, out = tmp_path / "texts.jsonl", tmp_path / "out"
    lines = [{"text": text, "label": f"{at % 2}"} for at, text in enumerate(TEXTS * 3)]
    file.write_text(jsonl(lines))
    train = ("train", file, "-m", family(row), "-o", out, "--epochs", 1, "-q")
    if f"{row.prefix}ForSequenceClassification" not in FAMILIES[row.model_type].classes:
        done = bad(*train, "--full")
        assert f"{FAMILIES[row.model_type].title} has no head for whole texts" in done.error
        assert "--frozen trains a classifier of its vectors" in done.hint
        good(*train, "--frozen")
        assert len(good("classify", "-m", out, *TEXTS).rows) == len(TEXTS)
        return
    good(*train, "--full")
    config = json_in(out / "config.json")
    assert config["model_type"] == row.model_type
    assert config["architectures"] == [f"{row.prefix}ForSequenceClassification"]
    theirs = getattr(transformers, config["architectures"][0])
    _, info = theirs.from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    assert len(good("classify", "-m", out, *TEXTS).rows) == len(TEXTS)


@pytest.mark.parametrize("row", OWN, ids=lambda row: row.model_type)
def test_a_text_is_as_long_as_there_are_positions(row, family):
    folder, long = family(row), "long " * 100
    ids = good("tokenize", "-q", "-m", folder, "--truncation", "true", long).ids
    fits = len(ids[0])
    model = family.models[folder]
    assert model(torch.tensor(ids)).last_hidden_state.isfinite().all()
    if hasattr(getattr(model, "embeddings", None), "position_embeddings"):
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.tensor([[5] * (fits + 1)]))
    assert str(fits) in bad("embed", "-m", folder, "--max-length", fits + 1, long, code=2).error
    assert good("embed", "-q", "-m", folder, "-q", long).rows


@pytest.mark.parametrize("row", OWN, ids=lambda row: row.model_type)
def test_a_head_that_is_not_there_is_named_as_its_family_does(row, family):
    if f"{row.prefix}ForMaskedLM" not in FAMILIES[row.model_type].classes:
        done = bad("classify", "-q", "-m", family(row), "x")
        assert f"{FAMILIES[row.model_type].title} has no head for whole texts" in done.error
        return
    done = bad("classify", "-q", "-m", family(row, "ForMaskedLM"), "x")
    assert f"{row.prefix}ForSequenceClassification needs " in done.error
    assert "available heads: masked language model" in done.error
    done = bad("tag", "-q", "-m", family(row, "ForSequenceClassification"), "x")
    assert f"config.json says {row.prefix}ForSequenceClassification" in done.error


@pytest.mark.parametrize("row", OWN, ids=lambda row: row.model_type)
def test_a_pooler_is_used_or_said_not_to_be_there(row, family, tmp_path):
    folder, out = family(row), tmp_path / "out.npy"
    argv = ("embed", "-q", "-m", folder, "--pooling", "pooler", "--no-normalize", "-o", out, "a")
    model = family.models[folder]
    if getattr(model, "pooler", None) is None:
        page = FAMILIES[row.model_type]
        told = (f"family {page.title} have no pooler", f"{row.prefix}Model needs pooler.dense")
        assert any(words in bad(*argv).error for words in told)
        return
    good(*argv)
    with torch.no_grad():
        close(torch.from_numpy(np.load(out)), model(ids_of("a")).pooler_output)


@pytest.mark.parametrize("row", OWN, ids=lambda row: row.model_type)
def test_pairs_are_judged_as_by_transformers(row, family):
    if f"{row.prefix}ForSequenceClassification" not in FAMILIES[row.model_type].classes:
        return
    folder = family(row, "ForSequenceClassification")
    model = family.models[folder]
    given = tokenizer()("who is it", "the river", return_tensors="pt")
    types = given.pop("token_type_ids")
    if "token_type_ids" in inspect.signature(type(model).forward).parameters:
        given["token_type_ids"] = types
    line = json.dumps({"text": "who is it", "pair": "the river"})
    (found,) = good("classify", "-m", folder, "--input-format", "jsonl", "--pair-field", "pair",
                    "-f", "jsonl", stdin=line).rows  # fmt: skip
    with torch.no_grad():
        close(torch.tensor(found["score"]), model(**given).logits[0].softmax(-1).max())


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("deberta-v2", "num_attention_heads", 0),
        ("deberta-v2", "num_attention_heads", {}),
        ("nomic_bert", "num_hidden_layers", 1e300),
        ("gte", "num_hidden_layers", 1.5),
        ("distilbert", "seq_classif_dropout", 2),
        ("distilbert", "qa_dropout", -1),
        ("electra", "summary_last_dropout", 2),
        ("jina_embeddings_v3", "hidden_size", 10**9),
    ],
)
def test_a_setting_that_no_model_has_is_refused(kind, key, value, family, tmp_path):
    (row,) = (row for row in ROWS if row.model_type == kind)
    folder = shutil.copytree(family(row), tmp_path / "model")
    settings = json_in(folder / "config.json") | {key: value}
    put_json(folder / "config.json", settings)
    large = key == "hidden_size"
    for argv in (["inspect", "--verify"], ["embed", "a"], ["tokenize", "a"])[: 2 if large else 3]:
        done = call(*argv, "-m", folder)
        assert done.code == 1 and (large or f"config.json: {key}: expected" in done.err), done
    if large:
        assert peak("embed", "a", "-m", folder, code=1) < 1500  # MB
