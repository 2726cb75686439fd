"""The benchmark's own parts, and one small run of it with bertcli alone."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from front import (
    TINY,
    environment,
    json_in,
)

from bertcli.hub import DEFAULT_MODEL, find_model

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def corpus(scripts):
    from corpus import Corpus

    return Corpus(find_model(DEFAULT_MODEL).path, 256)


def test_texts_are_the_same_each_time_and_differ_from_each_other(corpus):
    random.seed(1)
    first = corpus.short(200)
    random.seed(2)
    assert corpus.short(200) == first
    assert len(set(first.texts)) == 200


def test_sets_are_as_long_as_they_say(corpus):
    assert set(corpus.exact(64, 20).lengths) == {64}
    assert 12 < corpus.short(200).tokens / 200 < 20
    assert 220 < corpus.long(50).tokens / 50 <= 256
    mixed = corpus.mixed(100).lengths
    assert min(mixed) < 8
    assert max(mixed) == 256


def test_flops_of_the_default_model(scripts):
    from flops import Shape

    shape = Shape.read(find_model(DEFAULT_MODEL).path)
    assert shape.linear == 2 * 6 * (4 * 384 * 384 + 2 * 384 * 1536)
    assert shape.of([10, 3]) == 13 * shape.linear + 109 * shape.attention


def test_a_run_with_bertcli_alone(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "embedding.py"), "--model", str(TINY)]
    command += ["--only", "embed", "--contestants", "torch", "--max-length", "128"]
    command += ["--scale", "0.01", "--repeats", "1", "--output", str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    results = json_in(tmp_path / "embedding.json")
    [row] = results["embed"]["short"]["contestants"]
    assert row["name"] == "bertcli float32, torch"
    assert row["seconds"] > 0
    assert row["worst_cosine"] == pytest.approx(1)
    assert row["name"] in done.stdout
    assert "## embed" in (tmp_path / "embedding.md").read_text()


@pytest.mark.slow
def test_int8_is_measured_on_a_folder_that_is_made_for_it(scripts, corpus, tmp_path):
    from contestants import Contestant
    from engines import Place, load

    model = find_model(DEFAULT_MODEL).path
    place = Place(model, tmp_path, 256, 2)
    float32, int8 = (
        load(Contestant(f"bertcli {kind}", "bertcli", kind), place).run(["a", "b c"], 0)
        for kind in ("float32", "int8")
    )
    assert (tmp_path / "bertcli.int8" / "manifest.json").exists()
    assert 0.99 < (float32 * int8).sum(1).min() < 0.99999


@pytest.mark.slow
def test_the_road_beside_the_model(scripts, tmp_path, monkeypatch):
    import host

    monkeypatch.setattr(host, "FORMATS", ("npy",))
    table, record = host.run(tmp_path, 40, 1)
    assert [row[0] for row in table.rows] == ["the model alone", "npy"]
    assert all(each["megabytes"]["all"] > 10 for each in record.values())
