"""The benchmark's own parts, and one small run of it with bertcli alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from front import (
    TINY,
    environment,
    json_in,
)

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


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
def test_the_road_beside_the_model(scripts, tmp_path, monkeypatch):
    import host

    monkeypatch.setattr(host, "FORMATS", ("npy",))
    monkeypatch.setattr(host, "ALONE", "import numpy")  # torch and transformers take their time
    table, record = host.run(tmp_path, 40, 1)
    assert [row[0] for row in table.rows] == ["the model alone", "npy"]
    assert all(each["megabytes"]["all"] > 10 for each in record.values())
