"""`bertcli inspect --attention`: the numbers are the model's, and the pictures show them."""

import base64
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from front import (
    TINY,
    inspected,
    json_in,
    process,
)
from safetensors.torch import load_file, save_file

from bertcli.inspection.attention import AttentionMaps
from bertcli.inspection.attention import encode_maps as contents
from bertcli.model_folder.find import find_model
from bertcli.records.record import Record
from bertcli.versions import install_command

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = ("svg", "png", "pdf")
TEXT, PAIR = "What does a transformer attend to?", "Mostly to [SEP], says Zürich </script> <b>&amp;"


@pytest.fixture(scope="module")
def reference():
    """Tokens and attention maps of transformers on the default model."""
    folder = find_model("all-MiniLM-L6-v2").path
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXT, PAIR, return_tensors="pt")
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    return tokens, batch["token_type_ids"][0].tolist(), [one[0].numpy() for one in maps]


def check(found, reference):
    tokens, types, maps = reference
    assert found["tokens"] == tokens and found["sentences"] == types
    assert found["special"] == [int(token in ("[CLS]", "[SEP]")) for token in tokens]
    assert [layer["layer"] for layer in found["layers"]] == list(range(6))
    for layer, expected in zip(found["layers"], maps, strict=True):
        assert [one["head"] for one in layer["heads"]] == list(range(12))
        ours = np.array([one["weights"] for one in layer["heads"]]) / found.get("scale", 1)
        rounding = 0.5 / found["scale"] if "scale" in found else 0  # in a page
        np.testing.assert_allclose(ours, expected, rtol=0, atol=rounding + 1e-5)


@pytest.mark.parity
def test_maps_are_those_of_transformers(reference):
    code, out, err = inspected("--attention", TEXT, "--pair", PAIR, "--json")
    assert (code, err) == (0, "")
    check(json.loads(out), reference)


@pytest.mark.parametrize("form", [None, "svg"])
def test_maps_of_spoiled_weights_are_refused(form, tmp_path):
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("layer.1.attention.self.query.weight"))
    weights[name][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors")
    output = ["-o", tmp_path / f"out.{form}"] if form else []
    code, out, err = inspected(folder, "--attention", "hello", *output)
    assert (code, out) == (1, "")
    assert "attention of layer 1 is not finite: the weights contain NaN or infinity" in err
    assert "hint: bertcli inspect --verify" in err
    assert not list(tmp_path.glob("out.*"))


# --- choosing ---


def layers(*argv):
    code, out, err = inspected(TINY, "--attention", "hello", *argv, "--json")
    assert code == 0, err
    return {x["layer"]: [one["head"] for one in x["heads"]] for x in json.loads(out)["layers"]}


def test_layers_and_heads_are_chosen():
    every = [0, 1, 2, 3]
    assert layers() == layers("--layers", "all") == {0: every, 1: every}
    assert layers("--layers", "-1", "--heads", "3,0,3") == {1: [0, 3]}


@pytest.mark.parametrize(
    "argv", [["--layers", "2"], ["--layers", "-3"], ["--heads", "4"], ["--heads", "x"]]
)
def test_layers_and_heads_that_are_not_there(argv):
    code, out, err = inspected(TINY, "--attention", "hello", *argv)
    assert code == 2 and out == "" and "error" in err


def test_pruned_heads_keep_their_numbers(tmp_path):
    from bertcli.model_folder.load import load, save
    from bertcli.models.surgery import prune_heads

    model, _ = load(TINY)
    prune_heads(model, {1: [0, 2]})
    save(model, model.config, tmp_path)
    shutil.copy(TINY / "vocab.txt", tmp_path)
    code, out, _ = inspected(tmp_path, "--attention", "hello", "--json")
    heads = json.loads(out)["layers"][1]["heads"]
    assert code == 0 and [head["head"] for head in heads] == [1, 3]
    assert inspected(tmp_path, "--attention", "hello", "--heads", "2")[0] == 2
    for form in ("html", "svg", "npz"):
        argv = ("--layers", "all", "-o", tmp_path / f"x.{form}")
        assert inspected(tmp_path, "--attention", "hello", *argv)[0] == 0
    maps = np.load(tmp_path / "x.npz")["attention"][1]
    assert [np.isnan(head).all() for head in maps] == [True, False, True, False]
    assert np.array_equal(maps[1], np.array(heads[0]["weights"], np.float32))


def test_text_that_is_too_long_is_cut_and_said():
    code, out, err = inspected(TINY, "--attention", "a " * 500, "--json")
    assert code == 0 and "text truncated to 128 tokens (374 dropped)" in err
    assert len(json.loads(out)["tokens"]) == 128


def test_empty_text():
    code, out, _ = inspected(TINY, "--attention", "", "--json")
    assert code == 0 and json.loads(out)["tokens"] == ["[CLS]", "[SEP]"]


# --- the terminal ---


def test_a_map_in_a_pipe():
    code, out, err = inspected("--attention", "I love NLP!", "--pair", "Me too")
    lines = out.splitlines()
    assert (code, err) == (0, "") and "\x1b" not in out
    assert lines[0] == "layer 5 (of 0 to 5), mean of 12 heads: each row looks at the columns"
    rows = [line for line in lines if "▏" in line]
    assert [row.split()[0] for row in rows][:4] == ["[CLS]", "i", "love", "nl"]
    shares = [int(part) for part in rows[0].split("▏")[1].split()]
    assert 95 <= sum(shares) <= 105


def test_one_head_and_several_layers():
    _, out, _ = inspected(TINY, "--attention", "hello", "--layers", "all", "--heads", "2")
    assert "layer 0 (of 0 to 1), head 2" in out and "layer 1 (of 0 to 1), head 2" in out


@pytest.mark.parametrize(("columns", "colour"), [(20, False), (80, True), (200, False)])
def test_maps_fit_the_screen(columns, colour):
    env = {"COLUMNS": str(columns)} | ({"FORCE_COLOR": "1", "TERM": "xterm"} if colour else {})
    text = "the trophy does not fit in the brown suitcase because it is too big " * 3
    code, out, _ = inspected("--attention", text, **env)
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    rows = [line for line in plain.splitlines() if "▏" in line]
    assert code == 0 and max(map(len, rows)) <= columns
    assert ("-o attention.html" in " ".join(plain.split())) == (columns < 200)


# --- numbers ---


def recorded(*texts, **choice):
    from bertcli.inspection import inspect_folder
    from bertcli.inspection.attention import record_attention

    report = inspect_folder(find_model(str(TINY)))
    records = [text if isinstance(text, Record) else Record(text) for text in texts]
    return [maps for maps, _ in record_attention(report, records, **choice)]


def test_json_and_npz_are_exact(tmp_path):
    (right,) = recorded("hello world")
    for name in ("x.json", "x.npz"):
        assert inspected(TINY, "--attention", "hello world", "-o", tmp_path / name)[0] == 0
    arrays = dict(np.load(tmp_path / "x.npz"))
    length = len(right.tokens)
    assert arrays["attention"].shape == (2, 4, length, length)
    assert arrays["attention"].dtype == np.float32
    assert arrays["tokens"].tolist() == list(right.tokens)
    assert (arrays["layers"].tolist(), arrays["heads"].tolist()) == ([0, 1], [0, 1, 2, 3])
    assert {"sentences", "special"} < {*arrays}
    found = json_in(tmp_path / "x.json")
    for layer, heads in right.maps.items():
        for head, weights in heads.items():
            assert np.array_equal(arrays["attention"][layer, head], weights)
            read = found["layers"][layer]["heads"][head]["weights"]
            assert np.array_equal(np.array(read, np.float32), weights)
    assert "scale" not in found


def test_the_mean_of_all_heads(tmp_path):
    (right,) = recorded("hello world")
    argv = (TINY, "--attention", "hello world", "--heads", "mean", "-o")
    for name in ("x.json", "x.npz", "x.svg", "x.html"):
        code, _, err = inspected(*argv, tmp_path / name)
        assert (code, "map" in err) == (0, True)
    arrays = dict(np.load(tmp_path / "x.npz"))
    assert arrays["heads"].tolist() == [-1]
    np.testing.assert_allclose(
        arrays["attention"][1, 0], sum(right.maps[1].values()) / 4, rtol=1e-6
    )
    found = json_in(tmp_path / "x.json")
    assert [one["head"] for one in found["layers"][0]["heads"]] == ["mean"]
    assert "layer 1 · mean of all heads" in (tmp_path / "x.svg").read_text()
    out = inspected(TINY, "--attention", "hello world", "--heads", "mean")[1]
    assert "mean of all heads" in out


def test_several_texts(tmp_path):
    texts = ("hello world", "a the of")
    rights = recorded(*texts)
    argv = (TINY, *(part for text in texts for part in ("--attention", text)))
    for name in ("x.json", "x.npz"):
        assert inspected(*argv, "-o", tmp_path / name)[0] == 0
    arrays = dict(np.load(tmp_path / "x.npz"))
    many = json_in(tmp_path / "x.json")
    assert json.loads(inspected(*argv, "--json")[1]) == many
    for at, right in enumerate(rights):
        assert np.array_equal(arrays[f"attention_{at}"], right.arrays()["attention"])
        assert many[at] == right.to_json()
    out = inspected(*argv)[1]
    assert out.count("layer 1 (of 0 to 1)") == 2
    code, _, err = inspected(*argv, "-o", tmp_path / "x.svg")
    assert code == 2 and "a figure shows one text" in err
    code, _, err = inspected(*argv, "--pair", "x")
    assert code == 2 and "--pair and --extra need exactly one" in err


# --- pictures ---


@pytest.fixture
def picture(tmp_path):
    def make(form, *argv, model=TINY, text="hello world", pair="me too"):
        path = tmp_path / f"x.{form}"
        code, out, err = inspected(model, "--attention", text, "--pair", pair, "-o", path, *argv)
        assert (code, out) == (0, ""), err
        return path

    return make


def test_existing_files_are_kept(picture):
    path = picture("html")
    code, _, err = inspected(TINY, "--attention", "x", "-o", path)
    assert code == 1 and "already exists" in err
    assert inspected(TINY, "--attention", "x", "-o", path, "--overwrite")[0] == 0
    assert [*path.parent.iterdir()] == [path]


def texts(svg):
    """Return the texts of an SVG, which must ask for nothing from outside."""
    root = ET.fromstring(svg)
    links = [value for one in root.iter() for key, value in one.items() if "href" in key]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert b"url(" not in svg.replace(b"url(#", b"")
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def test_svg_has_every_map_and_token_as_text(picture):
    argv = ("--layers", "0,1", "--heads", "1,2")
    pair = "Mostly to [SEP], says </script> <b>&amp; --"
    found = Counter(texts(picture("svg", *argv, pair=pair).read_bytes()))
    out = inspected(TINY, "--attention", "hello world", "--pair", pair, *argv, "--json")[1]
    titles = [f"layer {layer} · head {head}" for layer in (0, 1) for head in (1, 2)]
    legend = ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "attention weight, from row to column"]
    tokens = json.loads(out)["tokens"]
    assert {"<", "&"} <= set(tokens)
    # Two rows and two columns of maps, with the tokens at the edges.
    assert found == Counter(titles) + Counter(legend) + Counter(4 * tokens)


@pytest.mark.parametrize("form", DRAWN)
def test_figures_depend_on_the_data_alone(form, picture):
    import matplotlib

    mine = {"font.size": 30, "text.usetex": True, "svg.fonttype": "path", "image.origin": "lower"}
    argv = ("--layers", "1", "--heads", "0")
    first = picture(form, *argv).read_bytes()
    with matplotlib.rc_context(mine):
        second = picture(form, *argv, "--overwrite").read_bytes()
        assert {name: matplotlib.rcParams[name] for name in mine} == mine
    assert first == second
    assert b"Date" not in first and b"matplotlib.org" not in first


def test_tokens_are_drawn_as_they_are():
    """Neither as formulas, nor with what an XML file cannot hold."""
    tokens = ["$x^2$", "$", "_", "a\x00b\n", "\ud800", "<!--", "", "🙂👍🏽"]
    weights = np.full((8, 8), 1 / 8, dtype=np.float32)
    found = AttentionMaps("<m&m>\x07", tokens, [0] * 8, [False] * 8, {0: {0: weights}}, 1)
    svg = contents([found], "svg")
    shown = ["$x^2$", "$", "_", "a\ufffdb\ufffd", "\ufffd", "<!--", "🙂👍🏽"]
    assert Counter(texts(svg)) >= Counter(2 * shown)
    assert ET.fromstring(svg).find(f"{SVG}title").text == "Attention of <m&m>\ufffd"
    for form in ("png", "pdf"):
        assert contents([found], form)


@pytest.mark.parametrize("form", DRAWN)
def test_without_matplotlib_the_extra_is_named_at_once(form, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(
        "bertcli.inspection.attention.record_attention", lambda *_: pytest.fail("too late")
    )
    path = tmp_path / f"x.{form}"
    code, out, err = inspected(TINY, "--attention", "hello", "-o", path)
    assert (code, out) == (1, "") and not path.exists()
    error, hint = err.splitlines()
    assert error.startswith(f"error: {path}: drawing .{form} needs matplotlib")
    assert hint == f"hint: {install_command('plots')}"


def test_the_page_and_the_numbers_need_no_matplotlib(picture, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert picture("html").exists() and picture("json").exists()


def test_a_home_that_cannot_be_written_is_nothing_to_speak_of(tmp_path):
    """Where matplotlib cannot keep its cache, it makes a temporary one, which is removed."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"HOME": "/dev/null", "TMPDIR": str(temporary), "XDG_CACHE_HOME": "", "MPLCONFIGDIR": ""}
    path = tmp_path / "x.png"
    done = process("inspect", TINY, "--attention", "hello", "-o", path, env=env)
    assert (done.code, done.out, done.err) == (0, "", f"note: {path}: 4 maps of 6 tokens\n")
    assert path.exists() and not list(temporary.iterdir())


def test_a_matplotlib_that_does_not_start(tmp_path):
    env = {"MPLBACKEND": "nonsense"}
    done = process("inspect", TINY, "--attention", "x", "-o", tmp_path / "x.svg", env=env)
    assert "drawing .svg needs matplotlib: Key backend: 'nonsense'" in done.error


# --- the page ---


def embedded(page):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return json.loads(text)


@pytest.mark.parity
def test_page_holds_the_numbers_and_asks_for_nothing(reference, picture):
    path = picture("html", model="all-MiniLM-L6-v2", text=TEXT, pair=PAIR)
    page = path.read_text(encoding="utf-8")
    check(embedded(page)["texts"][0], reference)
    assert "http:" not in page and "https:" not in page
    for outside in (" src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("):
        assert outside not in page
    assert "default-src 'none'" in page
    assert page.count("</script>") == 2


DRIVE = """
<script>
addEventListener("error", (event) => document.documentElement.dataset.error = event.message);
const press = (key) => document.getElementById("map").dispatchEvent(
  new KeyboardEvent("keydown", { key, cancelable: true }));
const text = (query) => document.querySelector(query).textContent;
const result = {};
const radios = (id) => [...document.querySelectorAll(`#${id} input`)];
result.layers = radios("layers").map((one) => one.value);
result.heads = radios("heads").map((one) => one.value);
radios("layers")[1].click();
radios("heads").find((one) => one.value === "2").click();
result.about = text("#about");
for (const key of ["ArrowDown", "ArrowDown", "ArrowRight", "End"]) press(key);
result.readout = text("#readout");
press("Home"); press("ArrowUp");
result.moved = text("#readout");
const token = document.querySelectorAll("#strip .token")[1];
token.dispatchEvent(new PointerEvent("pointerenter"));
result.hovered = text("#readout");
result.on = [...document.querySelectorAll("#map .row.on")].map((one) => one.textContent);
result.sentences = [...document.querySelectorAll("#strip p")].map((one) => one.className);
result.special = document.querySelectorAll("#strip .token.special").length;
result.bold = getComputedStyle(document.querySelector(".row-bar")).display;
const canvas = document.getElementById("weights");
result.size = [canvas.width, canvas.height];
result.pixel = [...canvas.getContext("2d").getImageData(1, 2, 1, 1).data];
result.requests = performance.getEntriesByType("resource").length;
result.ready = document.documentElement.dataset.ready;
const out = document.createElement("pre");
out.id = "result"; out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(result))));
document.body.append(out);
</script></body>"""


def test_page_in_a_browser(picture, browse):
    path = picture("html")
    page = path.read_text(encoding="utf-8")
    data = embedded(page)["texts"][0]
    path.write_text(page.replace("</body>", DRIVE), encoding="utf-8")
    dom = browse(path, "--dump-dom")
    assert "data-error" not in dom
    found = json.loads(base64.b64decode(re.search(r'id="result">([^<]+)<', dom)[1]))
    tokens, weights = data["tokens"], data["layers"][1]["heads"][2]["weights"]
    last = len(tokens) - 1
    assert found["layers"] == ["0", "1"] and found["heads"] == ["mean", "0", "1", "2", "3"]
    assert found["about"].endswith("layer 1 (of 0 to 1), head 2")

    def said(row, column):
        weight = f"{weights[row][column] / data['scale']:.3f}"
        return f"{tokens[row]} ({row}) looks at {tokens[column]} ({column}) with weight {weight}"

    assert found["readout"] == said(1, last)
    assert found["moved"] == said(0, 0)
    best = int(np.argmax(weights[1]))
    assert found["hovered"].startswith(f"{tokens[1]} (1) looks most at {tokens[best]} ({best}) ")
    assert found["on"] == [tokens[1]]
    assert found["sentences"] == ["a", "b"] and found["special"] == 3
    assert found["size"] == [len(tokens)] * 2
    assert found["requests"] == 0 and found["ready"] == "yes"


SECOND = """
<script>
addEventListener("error", (event) => document.documentElement.dataset.error = event.message);
const texts = [...document.querySelectorAll("#texts input")];
texts[1].click();
document.body.dataset.strip = [...document.querySelectorAll("#strip .token")]
  .map((one) => one.textContent).join(" ");
document.body.dataset.size = document.getElementById("weights").width;
document.body.dataset.about = document.getElementById("about").textContent;
document.body.dataset.names = texts.length;
</script></body>"""


def test_page_of_several_texts_in_a_browser(tmp_path, browse):
    path = tmp_path / "x.html"
    texts = ("--attention", "hello world", "--attention", "a the of")
    assert inspected(TINY, *texts, "--heads", "mean", "-o", path)[0] == 0
    path.write_text(path.read_text().replace("</body>", SECOND))
    dom = browse(path, "--dump-dom")
    assert "data-error" not in dom
    assert 'data-strip="[CLS] a the of [SEP]"' in dom
    assert 'data-size="5"' in dom and 'data-names="2"' in dom
    assert "mean of all heads" in dom


PHONE = """
<script>
addEventListener("error", (event) => document.documentElement.dataset.error = event.message);
const seen = {};
const box = (id) => document.getElementById(id).getBoundingClientRect();
seen.tops = ["text", "layers", "heads", "map"].map((id) => box(id).top);
seen.heads = box("heads").height;
seen.wide = document.documentElement.scrollWidth > innerWidth;
const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
const contrast = (one, other) => {
  const [low, high] = [one, other].map((colour) => luminance(parts(colour))).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const style = (query) => getComputedStyle(document.querySelector(query));
const card = style(".card").backgroundColor;
seen.special = ["#map .special", "#strip .special"].map((query) =>
  contrast(style(query).color, card) * Number(style(query).opacity));
const shades = palette().map((colour) => `rgb(${colour})`);
seen.readable = Math.min(...shades.map((shade) => {
  const probe = document.createElement("i");
  probe.style.color = readable(parts(shade));
  return contrast(probe.style.color, shade);
}));
choose(1, null);
seen.shaded = [...document.querySelectorAll("#strip .token")].every((one) =>
  shades.includes(one.style.background.replaceAll(", ", ",")));
document.body.dataset.seen = JSON.stringify(seen);
</script></body>"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_on_a_phone(picture, browse, scheme):
    """The text comes first, heads take one line, and all words can be read."""
    path = picture("html")
    page = path.read_text(encoding="utf-8")
    path.write_text(page.replace("</body>", PHONE), encoding="utf-8")
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    dom = browse(path, "--dump-dom", "--window-size=500,900", *dark)
    assert "data-error" not in dom
    seen = json.loads(unescape(re.search(r'data-seen="([^"]+)"', dom)[1]))
    assert seen["tops"] == sorted(seen["tops"])
    assert seen["heads"] < 170  # pixels
    assert not seen["wide"]
    assert min(*seen["special"], seen["readable"]) >= 4.5
    assert seen["shaded"]
