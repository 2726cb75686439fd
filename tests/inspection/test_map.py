"""`bertcli map`: a page and columns of a corpus, the same bytes for the same seed."""

import base64
import csv
import json
import re

import numpy as np
import pytest
from front import TINY, bad, call, good, jsonl, left_in, rows_in

pytest.importorskip("sklearn")
WORDS = ("apple pear plum", "violin piano flute", "rocket planet comet")
OWN = ["row", "text", "x", "y", "cluster", "label"]


@pytest.fixture
def corpus(tmp_path):
    """Three kinds of texts, and vectors as far apart as they are."""
    random = np.random.default_rng(3)
    kinds = random.integers(0, 3, 90)
    texts = [" ".join([*random.permutation(WORDS[kind].split())[:2], "and"]) for kind in kinds]
    rows = [
        {"id": f"t{at}", "text": text, "stars": int(at % 4), "kind": f"k{kind}"}
        for at, (text, kind) in enumerate(zip(texts, kinds, strict=True))
    ]
    (tmp_path / "c.jsonl").write_text(jsonl(rows))
    centres = random.normal(size=(3, 32))
    vectors = centres[kinds] + random.normal(size=(90, 32)) * 0.1
    np.save(tmp_path / "v.npy", vectors.astype(np.float32))
    return tmp_path, kinds


def mapped(folder, *options, name="map.html", code=0):
    argv = ("map", folder / "c.jsonl", "-m", TINY, "--vectors", folder / "v.npy")
    done = call(*argv, "-o", folder / name, *options)
    assert done.code == code, done
    return done.err.splitlines()


def data_of(path):
    page = path.read_text("utf-8")
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return json.loads(text)


def test_clusters_are_what_the_vectors_say_and_are_called_by_their_words(corpus):
    folder, kinds = corpus
    *_, note = mapped(folder, "--clusters", 3, name="map.jsonl")
    assert note == "note: 90 of 90 texts in 3 clusters"
    rows = rows_in(folder / "map.jsonl")
    assert [*rows[0]] == ["id", *OWN] and rows[4]["id"] == "t4" and rows[4]["row"] == 4
    for cluster in range(3):
        members = [at for at, row in enumerate(rows) if row["cluster"] == cluster]
        (kind,) = {*kinds[members]}
        (label,) = {rows[at]["label"] for at in members}
        assert sorted(label.split(", ")) == sorted(WORDS[kind].split())
        places = np.array([[row["x"], row["y"]] for row in rows])
        centre = places[members].mean(0)
        apart = np.linalg.norm(places - centre, axis=1)
        assert apart[members].max() < np.delete(apart, members).min()
    sizes = np.bincount([row["cluster"] for row in rows])
    assert sorted(sizes, reverse=True) == sizes.tolist()


@pytest.mark.parametrize("name", ["map.csv", "map.parquet", "map.tsv"])
def test_columns(corpus, name):
    folder, _ = corpus
    mapped(folder, "-q", name="map.jsonl")
    expected = rows_in(folder / "map.jsonl")
    mapped(folder, "-q", "--keep-fields", "stars", name=name)
    if name.endswith("parquet"):
        from pyarrow.parquet import read_table

        rows = read_table(folder / name).to_pylist()
        assert [{n: row[n] for n in ("id", *OWN)} for row in rows] == expected
        assert [row["stars"] for row in rows[:5]] == [0, 1, 2, 3, 0]
        return
    with (folder / name).open(newline="") as file:
        rows = [*csv.DictReader(file, delimiter="\t" if "tsv" in name else ",")]
    assert [(row["x"], row["label"]) for row in rows] == [
        (str(row["x"]), row["label"]) for row in expected
    ]
    assert [row["stars"] for row in rows[:5]] == ["0", "1", "2", "3", "0"]


def test_the_same_seed_gives_the_same_bytes(corpus):
    folder, _ = corpus
    for name, seed in (("a.html", 5), ("b.html", 5), ("c.html", 6)):
        mapped(folder, "-q", "--seed", seed, name=name)
    a, b, c = ((folder / f"{name}.html").read_bytes() for name in "abc")
    assert a == b != c


def test_the_page_holds_the_points_and_asks_for_nothing(corpus):
    folder, kinds = corpus
    mapped(folder, "-q", name="map.jsonl")
    mapped(folder, "-q", "--color", "kind")
    rows, data = rows_in(folder / "map.jsonl"), data_of(folder / "map.html")
    for name in ("x", "y", "cluster", "text"):
        assert data[name] == [row[name] for row in rows]
    assert data["values"] == [f"k{kind}" for kind in kinds] and data["field"] == "kind"
    assert [data["labels"][row["cluster"]] for row in rows] == [row["label"] for row in rows]
    page = (folder / "map.html").read_text("utf-8")
    assert "http:" not in page and "https:" not in page and "<title>Map · c.jsonl" in page
    for outside in (" src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("):
        assert outside not in page
    assert "default-src 'none'" in page and page.count("</script>") == 2


def test_a_label_is_of_words_that_half_of_the_cluster_has():
    from bertcli.inspection.corpus_map import cluster_labels

    texts = ["the rocket is delayed by the storm", "the rocket lands", "a rocket for the moon"]
    others = ["the tea is against the law", "no tea for the minister", "the tea of the moon"]
    many = ["as one", "as two", "as three"]
    clusters = np.repeat([0, 1, 2], 3)
    assert cluster_labels([*texts, *others, *many], clusters)[:2] == ["rocket", "tea"]
    assert cluster_labels([*texts, *others, *many], clusters)[2] in ("one", "two", "three")
    assert cluster_labels(["the", "and", "of"], np.zeros(3, int)) == [""]


def test_a_cluster_without_such_words_has_its_most_characteristic_word_for_a_label():
    from bertcli.inspection.corpus_map import cluster_labels

    mixed = ["he said yield", "she said five", "yield six", "seven", "eight"]
    others = ["she said tea", "he said tea", "we said tea"]
    assert cluster_labels([*mixed, *others], np.repeat([0, 1], [5, 3]))[0] == "yield"


@pytest.mark.parametrize("given", ["c.txt", "notes/"])
def test_without_an_output_the_page_is_beside_the_file(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for file in ("c.txt", "notes/c.txt"):
        (tmp_path / file).write_text("the love\nparis\nlondon\n")
    done = call("map", given, "-m", TINY)
    name = f"{given.rstrip('/')}.map.html"
    assert done.code == 0 and done.out == ""
    assert f"note: the map is written to {name}; -o FILE" in done.err
    assert data_of(tmp_path / name)["text"] == ["the love", "paris", "london"]
    assert "already exists" in call("map", given, "-m", TINY).err


def test_a_field_that_is_not_there_or_not_drawn_is_refused(corpus, tmp_path):
    folder, _ = corpus
    argv = ("map", folder / "c.jsonl", "-m", TINY, "--color", "kind")
    assert bad(*argv, "-f", "csv", code=2).error == "--color is for a page, not for csv"
    text = tmp_path / "c.txt"
    text.write_text("the love\nparis\n")
    done = bad("map", text, "-m", TINY, "-o", tmp_path / "x.html", "--color", "kind", code=2)
    assert done.error == "--color: the input is read as txt, which has no fields"


def test_a_sample_of_many_texts_is_drawn_and_all_have_columns(corpus, monkeypatch):
    folder, kinds = corpus
    vectors = np.load(folder / "v.npy")
    vectors[-1] = vectors[:-1][kinds[:-1] == kinds[-1]][0]  # equal texts have equal places
    np.save(folder / "v.npy", vectors)
    monkeypatch.setattr("bertcli.inspection.corpus_map.MAX_TEXTS", 30)
    monkeypatch.setattr("bertcli.inspection.corpus_map.ROWS_PER_BLOCK", 7)
    *_, note = mapped(folder, "--clusters", 3)
    assert note == "note: 30 of 90 texts in 3 clusters"
    data = data_of(folder / "map.html")
    assert data["row"] == sorted({*data["row"]}) and len(data["row"]) == 30 and data["total"] == 90
    *_, note = mapped(folder, "--clusters", 3, name="map.jsonl")
    assert note == "note: 90 of 90 texts in 3 clusters"
    rows = rows_in(folder / "map.jsonl")
    assert [(row["row"], row["id"]) for row in rows] == [(at, f"t{at}") for at in range(90)]
    for name in ("x", "y", "cluster", "text"):  # those of the page are among them
        assert data[name] == [rows[row][name] for row in data["row"]]
    drawn = np.array([data["x"], data["y"]]).T
    for kind in range(3):
        members = [row for row, own in zip(rows, kinds, strict=True) if own == kind]
        assert len({row["cluster"] for row in members}) == 1
        near = drawn[[kinds[row] == kind for row in data["row"]]]
        places = np.array([[row["x"], row["y"]] for row in members])
        assert (places >= near.min(0) - 1e-3).all() and (places <= near.max(0) + 1e-3).all()
    equal = [row for row in rows if np.array_equal(vectors[row["row"]], vectors[-1])]
    (first, second) = equal
    assert [first[name] for name in "xy"] == pytest.approx([second[name] for name in "xy"], abs=0.3)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_texts_whose_vectors_are_computed(tmp_path, count):
    file = tmp_path / "c.txt"
    file.write_text("".join(f"{text}\n" for text in ["!", "?", "the love", "paris", "</script>"]))
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:count]))
    rows = good("map", file, "-m", TINY, "-q", "-f", "jsonl").rows
    assert len(rows) == count and all(np.isfinite([row["x"], row["y"]]).all() for row in rows)
    good("map", file, "-m", TINY, "-q", "-o", tmp_path / "map.html")
    assert data_of(tmp_path / "map.html")["text"][-1] == rows[-1]["text"]
    assert left_in(tmp_path) == ["c.txt", "map.html"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("", "a map needs at least two texts, not 0"),
        ("one\n", "a map needs at least two texts, not 1"),
        ("the love\nthe love\n", "all vectors are equal, and have no map"),
    ],
)
def test_a_corpus_that_has_no_map(tmp_path, texts, message):
    file = tmp_path / "c.txt"
    file.write_text(texts)
    done = call("map", file, "-m", TINY, "-o", tmp_path / "map.html")
    assert done.code == 1 and f"error: {message}" in done.err.splitlines()
    assert left_in(tmp_path) == ["c.txt"]


def test_vectors_that_do_not_fit(corpus):
    folder, _ = corpus
    vectors = np.load(folder / "v.npy")
    vectors[7, 3] = np.nan
    np.save(folder / "v.npy", vectors)
    assert "error: row 7 contains NaN or infinity" in mapped(folder, code=1)
    np.save(folder / "v.npy", vectors[:, :5])
    assert any("has 5 dimensions, and the model 32" in line for line in mapped(folder, code=1))
    np.save(folder / "v.npy", vectors[8:80])
    errors = [line for line in mapped(folder, code=1) if line.startswith("error: ")]
    assert len(errors) == 1 and "has 72 rows, and the corpus has 90 texts" in errors[0]
    assert left_in(folder) == ["c.jsonl", "v.npy"]


def test_wrong_usage(corpus, monkeypatch):
    folder, _ = corpus
    texts = folder / "c.jsonl"
    assert "unknown format" in bad("map", texts, "-m", TINY, "-o", folder / "x.foo").error
    assert "nowhere" in bad("map", texts, "-m", TINY, "--color", "nowhere", "-f", "html").error
    done = bad("map", texts, "-m", TINY, "--clusters", 1, code=2)
    assert "--clusters" in done.error
    (folder / "map.html").touch()
    argv = ("map", texts, "-m", TINY, "--vectors", folder / "v.npy", "-o", folder / "map.html")
    assert "already exists" in call(*argv).err
    monkeypatch.setattr("bertcli.inspection.corpus_map.find_spec", lambda name: None)
    done = bad("map", texts, "-m", TINY, "-f", "csv")
    assert done.error == "a map needs scikit-learn" and "bertcli[map]" in done.hint


DRIVE = """
<script>
addEventListener("error", (event) => document.documentElement.dataset.error = event.message);
const result = {}, text = (query) => document.querySelector(query).textContent;
const buttons = [...document.querySelectorAll("#groups button")];
result.groups = buttons.map((one) => one.querySelector("span").textContent);
result.about = text("#about");
const hover = (i) => map.dispatchEvent(new PointerEvent("pointermove", {
  clientX: map.getBoundingClientRect().x + places[i][0],
  clientY: map.getBoundingClientRect().y + places[i][1] }));
hover(4);
result.tip = [...document.querySelectorAll("#tip > *")].map((one) => one.textContent);
result.over = state.over;
get("search").value = "Apple pear";
get("search").dispatchEvent(new Event("input"));
result.found = text("#matches");
result.hits = [...document.querySelectorAll("#hits button")].map((one) => one.firstChild.data);
document.querySelector("#hits button").click();
result.jumped = [state.over, ...places[state.over].map(Math.round)];
result.middle = [map.clientWidth / 2, map.clientHeight / 2].map(Math.round);
Object.assign(view, { scale: 1, x: 0, y: 0 }); draw();
get("search").value = "";
get("search").dispatchEvent(new Event("input"));
buttons[0].click();
result.group = text("#matches");
buttons[0].click();
result.none = text("#matches");
const clusters = [...document.querySelectorAll("#clusters button")];
result.clusters = clusters.map((one) => one.querySelector("span").textContent);
clusters[0]?.click();
result.cluster = text("#matches");
clusters[0]?.click();
const before = places[4][0];
map.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", cancelable: true }));
result.moved = Math.round(places[4][0] - before);
map.dispatchEvent(new WheelEvent("wheel", { deltaY: -400, cancelable: true }));
result.scale = view.scale.toFixed(3);
map.dispatchEvent(new KeyboardEvent("keydown", { key: "0", cancelable: true }));
const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
result.painted = pixels.some((value) => value > 0);
result.names = document.querySelectorAll("#names div").length;
result.requests = performance.getEntriesByType("resource").length;
result.ready = document.documentElement.dataset.ready;
const out = document.createElement("pre");
out.id = "result"; out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(result))));
document.body.append(out);
</script></body>"""


def driven(path, browse, script=DRIVE):
    page = path.read_text("utf-8")
    path.write_text(page.replace("</body>", script), "utf-8")
    dom = browse(path, "--dump-dom")
    assert "data-error" not in dom
    return json.loads(base64.b64decode(re.search(r'id="result">([^<]+)<', dom)[1]))


def test_the_page_in_a_browser(corpus, browse):
    folder, kinds = corpus
    mapped(folder, "-q", "--color", "kind", "--clusters", 3)
    data = data_of(folder / "map.html")
    seen = driven(folder / "map.html", browse)
    sizes = np.bincount(kinds)
    assert sorted(seen["groups"]) == ["k0", "k1", "k2"] and seen["about"] == "90 texts"
    over = seen["over"]  # of points at one place the first
    equal = data["text"].count(data["text"][over])
    origin = f"row {over} · id t{over} · {equal} equal texts"
    assert seen["tip"] == [f"kind: {data['values'][over]}", data["text"][over], origin]
    assert data["text"][over].split()[0] in WORDS[kinds[4]]
    matching = [text for text in data["text"] if {"apple", "pear"} <= {*text.split()}]
    assert seen["found"] == f"{len(matching)} of 90 texts"
    assert seen["hits"] == [*dict.fromkeys(matching)]
    first = data["text"].index(matching[0])
    assert seen["jumped"] == [first, *seen["middle"]]
    assert seen["clusters"] == data["labels"]
    assert seen["cluster"] == f"{data['cluster'].count(0)} of 90 texts"
    assert seen["group"] == f"{sizes.max()} of 90 texts" and seen["none"] == ""
    assert seen["moved"] == 60 and seen["scale"] == "2.718"
    assert seen["painted"] and seen["names"] == 3
    assert seen["requests"] == 0 and seen["ready"] == "yes"


def test_the_page_by_cluster_and_by_numbers_in_a_browser(corpus, browse):
    folder, _ = corpus
    mapped(folder, "-q", "--clusters", 3)
    labels = data_of(folder / "map.html")["labels"]
    assert driven(folder / "map.html", browse)["groups"] == labels
    rows = rows_in(folder / "c.jsonl")
    lines = jsonl({**row, "price": at / 7} for at, row in enumerate(rows))
    (folder / "c.jsonl").write_text(lines)
    mapped(folder, "-q", "--color", "price", name="price.html")
    dom = browse(folder / "price.html", "--dump-dom")
    assert '<div class="scale-of-values"' in dom and "<span>12.714285714285714</span>" in dom


LONG = "pneumonoultramicroscopicsilicovolcanoconiosis internationalization misunderstanding"
OVERLAPS = """
<script>
addEventListener("error", (event) => document.documentElement.dataset.error = event.message);
const seen = [];
for (const factor of [1, 0.5, 3, 3, 3, 20]) {
  zoom(factor, map.clientWidth / 2 - 90, map.clientHeight / 2 + 60);
  const frame = map.getBoundingClientRect();
  const names = [...document.querySelectorAll("#names div")];
  const boxes = names.map((one) => one.getBoundingClientRect());
  const meet = (a, b) => a.right > b.left && b.right > a.left
    && a.bottom > b.top && b.bottom > a.top;
  const meetsLater = (box, i) => boxes.slice(i + 1).some((other) => meet(box, other));
  const isOutside = (box) => box.left < frame.left || box.right > frame.right
    || box.top < frame.top || box.bottom > frame.bottom;
  seen.push({
    labels: boxes.length,
    overlaps: boxes.filter(meetsLater).length,
    outside: boxes.filter(isOutside).length,
    inSight: places.some(([x, y]) => x > 0 && y > 0 && x < frame.width && y < frame.height),
  });
}
const out = document.createElement("pre");
out.id = "result"; out.textContent = btoa(JSON.stringify(seen));
document.body.append(out);
</script></body>"""


def test_labels_do_not_overlap_when_zoomed(tmp_path, browse):
    random = np.random.default_rng(4)
    clusters = random.integers(0, 24, 400)
    texts = [f"{LONG} number{cluster}" for cluster in clusters]
    (tmp_path / "c.txt").write_text("".join(f"{text}\n" for text in texts))
    vectors = random.normal(size=(24, 32))[clusters] + 0.4 * random.normal(size=(400, 32))
    np.save(tmp_path / "v.npy", vectors.astype(np.float32))
    argv = ("map", tmp_path / "c.txt", "-m", TINY, "--vectors", tmp_path / "v.npy")
    call(*argv, "-o", tmp_path / "map.html", "--clusters", 24)
    seen = driven(tmp_path / "map.html", browse, OVERLAPS)
    assert seen[0]["labels"] > 5
    for frame in seen:
        assert frame["overlaps"] == frame["outside"] == 0
        assert frame["labels"] > 0 or not frame["inSight"]


STRAYS = """
<script>
addEventListener("error", (event) => document.documentElement.dataset.error = event.message);
const sizes = data.labels.map(() => 0);
data.cluster.forEach((cluster, i) => {  // two points of each cluster are far above the others
  sizes[cluster] += 1;
  data.x[i] = left + (right - left) * cluster / 2;
  data.y[i] = bottom + (top_ - bottom) * (sizes[cluster] <= 2 ? 0.8 : sizes[cluster] / 1000);
});
draw();
const seen = [...document.querySelectorAll("#names div")].map((label) => {
  const cluster = data.labels.indexOf(label.textContent);
  const ys = places.filter((_, i) => data.cluster[i] === cluster).map(([, y]) => y);
  const probe = make("i", document.body, {});
  probe.style.color = groupColour(cluster);
  ys.sort((a, b) => a - b);
  return {
    gap: ys[2] - label.offsetTop,
    stray: ys[2] - ys[0],
    coloured: getComputedStyle(label).borderBottomColor === getComputedStyle(probe).color,
  };
});
const out = document.createElement("pre");
out.id = "result"; out.textContent = btoa(JSON.stringify(seen));
document.body.append(out);
</script></body>"""


def test_labels_have_the_colour_of_their_cluster_and_ignore_strays(corpus, browse):
    folder, _ = corpus
    mapped(folder, "-q", "--clusters", 3)
    seen = driven(folder / "map.html", browse, STRAYS)
    assert len(seen) == 3
    for label in seen:
        assert label["coloured"]
        assert abs(label["gap"]) < 40 < label["stray"]
