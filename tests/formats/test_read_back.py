"""What `embed` writes, the commands that take vectors read: in every format, compressed or not."""

import numpy as np
import pytest
from front import good

TEXTS = ("cat", "dog", "a bird")
FORMS = ("jsonl", "json", "csv", "parquet", "npy", "npz", "safetensors")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "c.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("form", FORMS)
def test_vectors_are_read_in_every_format(tmp_path, texts, form, compression):
    path = tmp_path / f"v.{form}{compression}"
    has_fields = form not in ("npy", "npz", "safetensors")
    argv = ("--keep-fields",) if has_fields else ()
    good("embed", "-q", "-i", texts, *argv, "-o", path)
    (answer,) = good("similar", "-q", "cat", "-k", 1, "--vectors", path).rows
    (hit,) = answer["hits"]
    assert (hit["row"], hit["score"], hit.get("text")) == (0, 1.0, "cat" if has_fields else None)
    (report,) = good("inspect", path, "--json").rows
    (vectors,) = [array for array in report["arrays"] if array["shape"] == [3, 384]]
    assert (vectors["nan"], vectors["inf"], vectors["norm"]["mean"]) == (0, 0, pytest.approx(1))
    good("compare", path, path)


def test_arrays_in_fortran_order_are_read(tmp_path, texts):
    good("embed", "-q", "-i", texts, "-o", tmp_path / "c.npy")
    vectors = np.load(tmp_path / "c.npy")
    np.save(tmp_path / "f.npy", np.asfortranarray(vectors))
    np.savez(tmp_path / "f.npz", np.asfortranarray(vectors))
    for name in ("f.npy", "f.npz"):
        (agreement,) = good("compare", tmp_path / name, tmp_path / "c.npy").rows
        assert agreement["identical"] and agreement["shape"] == [3, 384]
    ids = np.asfortranarray([[101, 7632, 102], [101, 4937, 102]])
    np.save(tmp_path / "ids.npy", ids)
    decoded = good("decode", "-q", "-i", tmp_path / "ids.npy").out
    assert decoded == "[CLS] hi [SEP]\n[CLS] cat [SEP]\n"
