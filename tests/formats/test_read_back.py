"""What `embed` writes, the commands that take vectors read: in every format, compressed or not."""

import numpy as np
import pytest
from front import call, good
from safetensors.numpy import load_file

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
    with open(tmp_path / "one.npy", "wb") as file:
        header = {"descr": "<f4", "fortran_order": True, "shape": ()}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.float32(7).tobytes())
    assert good("inspect", tmp_path / "one.npy", "--json").rows[0]["arrays"][0]["shape"] == []
    ids = np.asfortranarray([[101, 7632, 102], [101, 4937, 102]])
    np.save(tmp_path / "ids.npy", ids)
    decoded = good("decode", "-q", "-i", tmp_path / "ids.npy").out
    assert decoded == "[CLS] hi [SEP]\n[CLS] cat [SEP]\n"


@pytest.mark.parametrize("form", ["npz", "safetensors"])
@pytest.mark.parametrize("ragged", [True, False])
def test_arrays_say_which_text_a_window_is_of(tmp_path, form, ragged):
    out = tmp_path / f"ids.{form}"
    layout = ("--ragged",) if ragged else ("--padding", "max_length")
    argv = ("--max-length", 6, "--overflowing", "--length", *layout)
    good("tokenize", "-q", "a b c d e f", "a b c", *argv, "-o", out)
    arrays = load_file(out) if form == "safetensors" else np.load(out)
    assert arrays["overflow_to_sample_mapping"].tolist() == [0, 0, 1]
    assert arrays["length"].tolist() == ([6, 4, 5] if ragged else [6, 6, 6])
    assert arrays["length"].dtype == arrays["overflow_to_sample_mapping"].dtype == np.int64


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors"])
def test_ids_that_arrays_do_not_hold_are_told(tmp_path, form):
    (tmp_path / "k.csv").write_text("id,text\na,Hello\n")
    out = tmp_path / f"ids.{form}"
    done = call("tokenize", "-i", tmp_path / "k.csv", "-o", out)
    assert done.err == f"note: {form} holds no ids, files and lines: use parquet to keep them\n"


def test_bytes_that_cannot_be_converted_back_are_told(tmp_path, texts):
    argv = ("embed", "-i", texts, "-o", tmp_path / "v.npy", "--precision")
    done = call(*argv, "int8", "--no-manifest")
    assert "without a manifest, int8 cannot be converted back" in done.err
    assert "manifest" not in call(*argv, "binary", "--no-manifest", "--overwrite").err
