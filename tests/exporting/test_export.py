"""`bertcli export`: one graph that OpenVINO and ONNX Runtime run with the numbers of the model."""

import inspect
import random
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from family_models import ROWS
from front import (
    TINY,
    bad,
    call,
    good,
    json_in,
)
from model_reference import randomise
from sentence_folders import dense, saved, sentence_model
from sentence_transformers.sentence_transformer import modules as st
from task_models import SIZES, Models, labels, tokenizer

from bertcli import Tokenizer
from bertcli.families.registry import FAMILIES

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")
needs_onnx = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs onnxruntime")
needs_nncf = pytest.mark.skipif(find_spec("nncf") is None, reason="needs nncf")

TEXTS = ["I love NLP!", "", "Paris is the capital of France.", "no " * 40]
ENGINE = ("--backend", "openvino")
FORMATS = ["openvino", pytest.param("onnx", marks=needs_onnx)]
HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
OWN = [row for row in ROWS if not row.alike]
CASES = [("openvino", row, "") for row in OWN]
CASES += [("openvino", ROWS[0], f"For{head}") for head in HEADS]
ONNX_CASES = [("onnx", row, head) for row in OWN for head in ("", "ForSequenceClassification")]
CASES += [pytest.param(*case, marks=needs_onnx) for case in ONNX_CASES]


def run(folder, texts):
    """Return the outputs of a graph for padded texts, as its library runs it, and the inputs."""
    given = Tokenizer.load(folder)(texts, padding=True, truncation=True, max_length=24)
    given = {name: np.array(rows, np.int64) for name, rows in given.items()}
    if (folder / "onnx").exists():
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(folder / "onnx/model.onnx"), options)
        inputs = {value.name: given[value.name] for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True)), given
    import openvino

    graph = openvino.Core().compile_model(
        str(next((folder / "openvino").glob("*.xml"))), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    inputs = {next(iter(value.get_names())) for value in graph.inputs}
    results = graph({name: given[name] for name in inputs})
    return {next(iter(port.get_names())): array for port, array in results.items()}, given


def vectors(folder, *options, texts=TEXTS):
    """Return what `bertcli embed` makes of texts."""
    rows = good("embed", *texts, "-m", folder, "-q", *ENGINE, *options).rows
    return np.array([row["embedding"] for row in rows], np.float32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The default model, exported."""
    folder = tmp_path_factory.mktemp("exported") / "made"
    good("export", "-q", "-o", folder)
    return folder


@pytest.mark.parametrize("to", FORMATS)
def test_the_default_model_gives_the_vectors_of_embed_in_other_libraries(tmp_path, to):
    out = tmp_path / "made"
    note = call("export", "--to", to, "-o", out).err
    assert "cosine to the model 1.000000 at worst" in note
    manifest = json_in(out / "manifest.json")
    assert manifest["accuracy"]["largest_difference"] < 1e-5
    assert manifest["weights"]["model.safetensors"].startswith("53aa51172d14")
    outputs, _ = run(out, TEXTS[:3])
    right = np.array(
        [row["embedding"] for row in good("embed", *TEXTS[:3], "-q", "-f", "jsonl").rows]
    )
    np.testing.assert_allclose(outputs["sentence_embedding"], right, atol=1e-5)
    assert outputs["last_hidden_state"].shape[::2] == (3, 384)


def test_embed_runs_an_exported_folder_with_the_same_bits_in_any_batch(exported):
    out = exported
    here = vectors(out)
    right = np.array([row["embedding"] for row in good("embed", *TEXTS, "-q").rows])
    np.testing.assert_allclose(here, right, atol=1e-6)
    assert np.array_equal(here[::-1], vectors(out, texts=TEXTS[::-1]))
    assert np.array_equal(here, np.concatenate([vectors(out, texts=[text]) for text in TEXTS]))
    assert "no pooler" not in good("inspect", out).out
    for wrong in (("--layers", 2), ("--pooling", "pooler"), ("--backend", "torch")):
        assert (
            "use the model that it was exported from"
            in bad("embed", "a", "-m", out, *ENGINE, *wrong).err
        )


@pytest.mark.parity
@pytest.mark.parametrize(
    ("to", "row", "head"), CASES, ids=lambda case: getattr(case, "prefix", case)
)
def test_each_family_and_head_gives_the_numbers_of_transformers(tmp_path, to, row, head):
    import torch
    import transformers

    page, source, out = FAMILIES[row.model_type], tmp_path / "source", tmp_path / "made"
    sizes = {page.key(key): size for key, size in SIZES.items()} | dict(row.more)
    config = transformers.AutoConfig.for_model(row.model_type, **sizes, pad_token_id=0)
    named = getattr(transformers, f"{row.prefix}{head or 'Model'}", None)
    if named is None or named.__name__ not in page.classes:
        pytest.skip("there is no such class")
    model = randomise(named(config)).eval()
    model.save_pretrained(source)
    tokenizer().save_pretrained(source)
    good("export", "-q", "-m", source, "--to", to, "-o", out)
    outputs, given = run(out, ["a bank no NLP", "no", "bank . river a a a bank"])
    known = inspect.signature(model.forward).parameters
    with torch.no_grad():
        right = model(**{name: torch.from_numpy(a) for name, a in given.items() if name in known})
    real = given["attention_mask"].astype(bool)
    if not head:
        ours, theirs = outputs["last_hidden_state"], right.last_hidden_state
    elif head == "ForQuestionAnswering":
        ours = outputs["logits"]
        theirs = torch.stack([right.start_logits, right.end_logits], -1)
    else:
        ours, theirs = outputs["logits"], right.logits
    theirs = theirs.numpy()
    if theirs.ndim == 3:
        ours, theirs = ours[real], theirs[real]
    np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=2e-5)


@needs_onnx
@pytest.mark.parametrize("pooling", ["cls", "max", "mean"])
def test_modules_behind_the_pooling_are_in_the_graph(tmp_path, pooling):
    source = tmp_path / "source"
    saved(sentence_model(st.Pooling(32, pooling_mode=pooling), dense(32, 12)), source)
    right = vectors(source, texts=TEXTS[:3])
    for to in ("openvino", "onnx"):
        out = tmp_path / to
        good("export", "-q", "-m", source, "--to", to, "-o", out)
        outputs, _ = run(out, TEXTS[:3])
        np.testing.assert_allclose(outputs["sentence_embedding"], right, atol=1e-5)
    np.testing.assert_allclose(vectors(tmp_path / "openvino", texts=TEXTS[:3]), right, atol=1e-5)


# CPUs without it add two 8-bit products in 16 bits, which may be too few.
CPU = Path("/proc/cpuinfo")
HAS_VNNI = not CPU.exists() or "vnni" in CPU.read_text()


@needs_nncf
def test_8_bits_are_near_have_the_same_bits_and_are_asked_for(tmp_path, exported):
    out, both = tmp_path / "made", tmp_path / "both"
    assert "bertcli export" in bad("embed", "a", "--dtype", "int8", *ENGINE, code=2).err
    good("export", "-q", "--dtype", "int8", "-o", out)
    accuracy = json_in(out / "manifest.json")["accuracy"]
    mean, worst = (0.998, 0.99) if HAS_VNNI else (0.99, 0.97)
    assert accuracy["mean_cosine"] > mean and accuracy["worst_cosine"] > worst
    texts = [" ".join(random.Random(n).sample(TEXTS[2].split(), n % 6 + 1)) for n in range(20)]
    here = vectors(out, texts=texts)
    right = np.array([row["embedding"] for row in good("embed", *texts, "-q").rows])
    assert (here * right).sum(1).min() > worst
    assert np.array_equal(here[::-1], vectors(out, texts=texts[::-1]))
    assert np.array_equal(here, vectors(out, "--threads", 1, "--batch-tokens", 16, texts=texts))
    # A folder with both, as the hub has them: --dtype int8 finds the graph.
    shutil.copytree(exported, both)
    shutil.copytree(out / "openvino", both / "openvino", dirs_exist_ok=True)
    assert np.array_equal(here, vectors(both, "--dtype", "int8", texts=texts))
    assert not np.array_equal(here, vectors(both, texts=texts))


@needs_nncf
def test_accuracy_fast_is_that_of_nncf_and_says_its_cosines(tmp_path):
    out = tmp_path / "fast"
    good("export", "-q", "--dtype", "int8", "--accuracy", "fast", "-o", out)
    manifest = json_in(out / "manifest.json")
    assert manifest["quantization"] == "fast"
    assert manifest["accuracy"]["mean_cosine"] > 0.99 > manifest["accuracy"]["worst_cosine"] > 0.95
    assert np.array_equal(vectors(out, texts=TEXTS)[::-1], vectors(out, texts=TEXTS[::-1]))
    error = bad("export", "--accuracy", "fast", "-o", tmp_path / "no", code=2)
    assert error.error == "--accuracy fast requires --dtype int8"


def test_a_head_that_was_exported_is_run(tmp_path):
    made, out = tmp_path / "some", tmp_path / "out"
    data = tmp_path / "some.jsonl"
    data.write_text(
        '{"text":"good film","label":"good"}\n{"text":"bad film","label":"bad"}\n', "utf-8"
    )
    good("train", "-q", data, "-o", made, "--full", "--steps", 2, "--eval-fraction", 0, "-m", TINY)
    good("export", "-q", "-m", made, "-o", out)
    here, right = (good("classify", "a film", "-q", *ENGINE, "-m", m).rows[0] for m in (out, made))
    assert here["label"] == right["label"]
    assert here["score"] == pytest.approx(right["score"], abs=1e-6)


def test_what_cannot_be_run_is_one_line(tmp_path, exported):
    out, other = tmp_path / "made", tmp_path / "other"
    tiny = ("export", "-q", "-m", TINY, "-o", out)
    good(*tiny)
    assert "already exists" in bad(*tiny).err
    good(*tiny, "--overwrite")
    for name in ("openvino_model.xml", "openvino_model.bin"):
        shutil.copy(exported / "openvino" / name, out / "openvino" / name)
    assert "not the graph of this model" in bad("embed", "a", "-m", out, *ENGINE).err
    (out / "openvino/openvino_model.xml").write_text("<net", "utf-8")
    assert "not the graph of this model" in bad("embed", "a", "-m", out, *ENGINE).err
    assert (
        "--to openvino" in bad("export", "--to", "onnx", "--dtype", "int8", "-o", other, code=2).err
    )


@pytest.mark.parametrize("output", [None, "token_embeddings"])
def test_a_graph_beside_config_json_is_run(tmp_path, output):
    """As optimum-intel lays a folder out; of sentence models it calls the states otherwise."""
    import openvino

    made = tmp_path / "made"
    good("export", "-q", "-m", TINY, "-o", made)
    right = vectors(made, texts=TEXTS[:2])
    (made / "manifest.json").unlink()
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (made / "openvino" / name).rename(made / name)
    (made / "openvino").rmdir()
    if output:
        graph = openvino.Core().read_model(str(made / "openvino_model.xml"))
        for port in graph.outputs:
            if "last_hidden_state" in port.get_names():
                port.get_tensor().set_names({output})
        openvino.save_model(graph, tmp_path / "openvino_model.xml", compress_to_fp16=False)
        del graph
        for name in ("openvino_model.xml", "openvino_model.bin"):
            (tmp_path / name).replace(made / name)
    assert np.array_equal(vectors(made, texts=TEXTS[:2]), right)
    assert "an exported graph instead of weights" in good("inspect", made).out
    done = bad("classify", "a", "-m", made, *ENGINE)
    assert "openvino_model.xml: not the graph of this model: no output logits" in done.error
    done = bad("export", "-m", made, "-o", tmp_path / "again")
    assert (
        done.error
        == f"{made / 'openvino_model.xml'}: a graph of OpenVINO without the model's weights"
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"))


ONNX_LAYOUTS = [
    "onnx/model.onnx",
    "model.onnx",
    "model_optimized.onnx",
    "onnx/model_quantized.onnx",
]


@pytest.fixture(scope="module")
def exported_onnx(tmp_path_factory):
    """The default model, exported as ONNX."""
    folder = tmp_path_factory.mktemp("exported-onnx") / "made"
    good("export", "-q", "--to", "onnx", "-o", folder)
    return folder


def moved(folder, name, target):
    """Copy an exported folder, and give its graph another name."""
    shutil.copytree(folder, target)
    (target / "graph").write_bytes((target / "onnx/model.onnx").read_bytes())
    shutil.rmtree(target / "onnx")
    (target / name).parent.mkdir(exist_ok=True)
    (target / "graph").rename(target / name)
    return target


@needs_onnx
@pytest.mark.parametrize("name", ONNX_LAYOUTS)
def test_a_folder_that_has_only_an_onnx_graph_is_run(tmp_path, exported_onnx, name):
    folder = moved(exported_onnx, name, tmp_path / "made")
    here = vectors(folder)
    right = np.array([row["embedding"] for row in good("embed", *TEXTS, "-q").rows])
    np.testing.assert_allclose(here, right, atol=1e-5)
    assert np.array_equal(here[::-1], vectors(folder, texts=TEXTS[::-1]))
    assert np.array_equal(here, np.concatenate([vectors(folder, texts=[one]) for one in TEXTS]))
    (row,) = good("inspect", folder, "--json").rows
    assert (row["weights"]["format"], [*row["weights"]["files"]]) == ("onnx", [Path(name).name])
    assert "an exported graph instead of weights" in good("inspect", folder).out
    assert good("inspect", folder, "--verify").code == 0
    done = bad("classify", "a", "-m", folder, *ENGINE)
    assert "no output logits, but last_hidden_state, sentence_embedding" in done.error
    done = bad("export", "-m", folder, "-o", tmp_path / "again")
    assert done.error == f"{folder / name}: a graph of ONNX without the model's weights"


@needs_onnx
def test_the_states_of_an_onnx_graph_have_the_name_of_optimum_or_none(tmp_path, exported_onnx):
    import onnx

    folder = moved(exported_onnx, "onnx/model.onnx", tmp_path / "made")
    model = onnx.load(str(folder / "onnx/model.onnx"))
    states = next(one for one in model.graph.output if one.name == "last_hidden_state")
    node = next(one for one in model.graph.node if "last_hidden_state" in one.output)
    node.output[0] = states.name = "token_embeddings"
    for axis in states.type.tensor_type.shape.dim:  # sizes that the graph does not state
        axis.Clear()
        axis.dim_param = "unknown"
    onnx.save_model(model, str(folder / "onnx/model.onnx"))
    assert np.array_equal(vectors(folder), vectors(exported_onnx))
    model.graph.output.remove(states)
    onnx.save_model(model, str(folder / "onnx/model.onnx"))
    done = bad("embed", "a", "-m", folder, *ENGINE)
    assert "no output last_hidden_state, but sentence_embedding" in done.error


@needs_onnx
def test_a_graph_with_ranges_of_the_batch_has_the_same_bits_in_any_batch(tmp_path, exported_onnx):
    """As the quantized graphs of Xenova: each text runs alone, as in ONNX Runtime."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = moved(exported_onnx, "onnx/model_quantized.onnx", tmp_path / "made")
    source = exported_onnx / "onnx/model.onnx"
    target = folder / "onnx/model_quantized.onnx"
    quantize_dynamic(source, target, weight_type=QuantType.QUInt8)
    session = onnxruntime.InferenceSession(str(target))
    tokenize = Tokenizer.load(folder)
    right = []
    for text in TEXTS:
        given = {key: np.array([row], np.int64) for key, row in tokenize(text).items()}
        right.append(session.run(["sentence_embedding"], given)[0][0])
    here = vectors(folder)
    assert (here * np.stack(right)).sum(1).min() > 0.999
    assert np.array_equal(here, np.concatenate([vectors(folder, texts=[one]) for one in TEXTS]))


@needs_onnx
def test_a_head_in_an_onnx_graph_is_run(tmp_path, models):
    out = tmp_path / "made"
    source = models("BertForSequenceClassification", **labels("a", "b", "c"))
    good("export", "-q", "-m", source, "--to", "onnx", "-o", out)
    rows = [good("classify", *TEXTS, "-q", "-m", path, *ENGINE).rows for path in (source, out)]
    for right, here in zip(*rows, strict=True):
        assert here["label"] == right["label"] and abs(here["score"] - right["score"]) < 1e-5


@needs_onnx
def test_what_is_no_folder_with_an_onnx_graph_is_named(tmp_path, exported_onnx):
    folder = moved(exported_onnx, "onnx/model_q4.onnx", tmp_path / "made")
    done = bad("embed", "a", "-m", folder, *ENGINE)
    assert (
        done.error
        == f"model folder '{folder}' has an ONNX graph of another name (onnx/model_q4.onnx)"
    )
    assert "bertcli runs onnx/model.onnx or onnx/model_optimized.onnx or" in done.hint
    done = bad("embed", "a", "-m", exported_onnx / "onnx", *ENGINE)
    assert "has an ONNX graph (model.onnx) without the tokenizer" in done.error
    (folder / "model.onnx").write_bytes(b"onnx")
    assert "not the graph of this model" in bad("embed", "a", "-m", folder, *ENGINE).error
    good("export", "-q", "-m", TINY, "-o", tmp_path / "openvino")
    done = bad("embed", "a", "-m", tmp_path / "openvino" / "openvino", *ENGINE)
    assert "has a graph of OpenVINO (openvino_model.xml) without the tokenizer" in done.error


@pytest.mark.parametrize("name", ["model.onnx", "a/openvino_model.XML"])
@pytest.mark.parametrize("to", ["openvino", "onnx"])
def test_the_output_is_a_folder(tmp_path, name, to):
    (tmp_path / "a").mkdir()
    done = bad("export", "-q", "-m", TINY, "--to", to, "-o", tmp_path / name, code=2)
    assert (
        done.error == f"--output {tmp_path / name} is named like a file, but export writes a folder"
    )
    assert done.hint.endswith(f"writes {(tmp_path / name).with_suffix('')}/onnx/model.onnx")
    assert not (tmp_path / name).exists()
