"""On CUDA: the vectors of the CPU, in every format, on every device, with little memory."""

import numpy as np
import pytest
import torch
from front import call, good, on_torch

from bertcli import load
from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.engines.torch_engine import fuse_gelu
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="less than two CUDA devices")
POOLINGS = ("cls", "mean", "max", "mean_sqrt_len", "weightedmean", "lasttoken", "pooler")


@pytest.fixture(scope="module")
def folder():
    return find_model("all-MiniLM-L6-v2", files=MODEL_FILES)


@pytest.fixture(scope="module")
def texts():
    """Texts of every length from none to far over the limit, some twice."""
    words = ["the", "quick", "brown", "fox", "tokenizes", "NLP", "Straße", "and", "東京", "naïve"]
    some = [" ".join((words * 40)[n % 7 : n % 7 + n * n // 40]) + f" {n}" for n in range(120)]
    return [*some, "", *some[:10], "!"]


@pytest.fixture(autouse=True)
def full_float32():
    """TensorFloat32, which a user may have switched on, is not what is compared here."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def vectors(folder, texts, **options):
    embedder = RecordEmbedder.open(folder, on_torch(**options))
    made = RecordVectors(embedder, texts)
    list(made)
    return made.vectors


def cosines(one, other):
    product = (one.astype(np.float64) * other).sum(-1)
    return product / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_float32_is_that_of_the_cpu(folder, texts, pooling):
    here = vectors(folder, texts, pooling=pooling, device="cpu")
    there = vectors(folder, texts, pooling=pooling, device="cuda")
    assert np.abs(here - there).max() < 1e-4
    assert cosines(here, there).min() > 0.99999


@pytest.mark.parametrize("combine", ["mean", "sum", "concat", "stack"])
def test_layers_are_those_of_the_cpu(folder, texts, combine):
    options = {"layers": (0, 3, -1), "layer_combine": combine, "normalize": False}
    here = vectors(folder, texts, device="cpu", **options)
    there = vectors(folder, texts, device="cuda", **options)
    assert here.shape == there.shape
    scale = max(1.0, float(np.abs(here).max()))
    assert np.abs(here - there).max() < 1e-4 * scale


@pytest.mark.parametrize(("dtype", "least"), [("float16", 0.9999), ("bfloat16", 0.998)])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_half_the_bits_keep_the_direction(folder, texts, dtype, least, pooling):
    here = vectors(folder, texts, pooling=pooling, device="cpu")
    there = vectors(folder, texts, pooling=pooling, device="cuda", dtype=dtype)
    assert there.dtype == np.float32
    assert np.isfinite(there).all()
    assert cosines(here, there).min() > least


@pytest.mark.parametrize("max_length", [64, 256])  # there is a kernel for short texts
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_packed(folder, texts, dtype, pooling, max_length):
    options = {"pooling": pooling, "dtype": dtype, "max_length": max_length}
    embedder = RecordEmbedder.open(folder, on_torch(device="cuda", **options))
    assert embedder.runtime.engine.facts()["kernel"] == "packed"
    packed = RecordVectors(embedder, texts)
    list(packed)
    embedder.runtime.engine.varlen = None
    padded = RecordVectors(embedder, texts)
    list(padded)
    assert cosines(packed.vectors, padded.vectors).min() > (0.9999 if dtype == "float16" else 0.998)


def test_gelu_within_a_product_is_that_behind_it(folder, texts):
    model, _ = load(folder.path, device="cuda", dtype=torch.bfloat16)
    inner = model.encoder.layer[0].intermediate
    x = torch.randn(3, 50, 384, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        plain = inner(x)
        fuse_gelu(model)
        torch.testing.assert_close(inner(x), plain, rtol=0.016, atol=0.001)


def test_the_same_run_gives_the_same_bytes(tmp_path, texts):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    for name in ("a.npy", "b.npy"):
        good("embed", "-q", "-i", file, "--device", "cuda", "-o", tmp_path / name)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


@two
def test_two_devices_give_the_bytes_of_one(folder, texts):
    options = {"batch_tokens": 2048, "window": 32}
    one = vectors(folder, texts, device="cuda:0", **options)
    for names in ("cuda:0,cuda:1", "cuda:all"):
        assert np.array_equal(one, vectors(folder, texts, device=names, **options))


@pytest.fixture
def little_memory():
    """Leave this process some 600 MB more than it has, and give back the rest afterwards."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + 600e6) / total, 0)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    torch.cuda.empty_cache()


def test_memory_that_really_runs_out_halves_the_batches(folder, little_memory, messages):
    texts = [f"{'word ' * 250} {n}" for n in range(2000)]
    embedder = RecordEmbedder.open(folder, on_torch(device="cuda:0", batch_tokens=1 << 19))
    run = RecordVectors(embedder, texts)
    run.execute()
    found = run.vectors
    assert any("out of memory on cuda:0: batches of" in message for message in messages)
    assert embedder.runtime.budget < 1 << 19
    some = vectors(folder, texts[:5], device="cpu")
    assert np.abs(found[:5] - some).max() < 1e-4


def test_auto_is_the_first_device_and_verbose_says_so():
    done = call("embed", "-v", "I love NLP!", "-f", "jsonl")
    assert done.code == 0
    assert "runs on cuda:0, threads " in done.err
