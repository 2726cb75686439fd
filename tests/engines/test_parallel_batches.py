"""Batches that run at once on a CPU give the same bits, and stop when they are not wanted."""

import random

import numpy as np
import pytest
from front import good

from bertcli import Embedder
from bertcli.engines.openvino_engine import CompiledModel

pytestmark = pytest.mark.light


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Return a file of 200 texts of all lengths."""
    path = tmp_path_factory.mktemp("lines") / "texts.txt"
    words = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "seven", "grey", "mice")
    texts = [" ".join(words[(n + k) % len(words)] for k in range(n % 97 + 1)) for n in range(200)]
    path.write_text("\n".join(dict.fromkeys(f"{n} {text}" for n, text in enumerate(texts))))
    return path


def test_a_file_has_the_bits_of_texts_that_are_given_alone(lines, tmp_path):
    good("embed", "--backend", "openvino", "-i", lines, "-o", tmp_path / "x.npy")
    texts = lines.read_text().splitlines()
    chosen = [0, 31, 96, 150, 199]
    alone = Embedder.load().encode([texts[index] for index in chosen])
    assert np.array_equal(np.load(tmp_path / "x.npy")[chosen], alone)


def test_python_has_the_same_bits_with_parallel(lines):
    texts = lines.read_text().splitlines()
    parallel = Embedder.load(parallel=True)
    assert np.array_equal(parallel.encode(texts), Embedder.load().encode(texts))


@pytest.mark.parametrize("parallel", [False, True])
def test_a_text_has_the_same_bits_with_any_other_texts(parallel):
    generator = random.Random(7)
    words = ["the", "cat", "sat", "on", "seven", "grey", "mats", "Ouagadougou", "!"]
    counts = [*range(1, 40), *range(40, 240, 9)]
    texts = [" ".join(generator.choices(words, k=count)) for count in counts]
    embedder = Embedder.load(backend="openvino", parallel=parallel)
    alone = [embedder.encode(text) for text in texts]
    for _ in range(25):
        chosen = generator.sample(range(len(texts)), generator.randint(2, 30))
        together = embedder.encode([texts[index] for index in chosen])
        expected = np.stack([alone[index] for index in chosen])
        assert np.array_equal(together, expected)


def test_a_single_batch_runs_on_all_threads_and_several_in_parallel(lines):
    texts = lines.read_text().splitlines()
    expected = Embedder.load(backend="openvino").encode(texts)
    embedder = Embedder.load(backend="openvino", parallel="auto")
    assert np.array_equal(embedder.encode(texts[0]), expected[0])
    if embedder.runtime.engine.threads == 1:
        return
    assert embedder.runtime.opening is None  # a single text takes no memory for it
    for _ in range(2):  # the second time in parallel
        assert np.array_equal(embedder.encode(texts), expected)
        assert embedder.runtime.opening.result().engines > 1
    assert np.array_equal(embedder.encode(texts[0]), expected[0])


def opened_for_parallel(texts):
    """Return an embedder that runs the batches of these texts in parallel."""
    embedder = Embedder.load(backend="openvino", parallel="auto")
    if embedder.runtime.engine.threads == 1:
        pytest.skip("batches are run in parallel only on several cores")
    embedder.encode(texts)
    assert embedder.runtime.opening.result().engines > 1
    return embedder


@pytest.mark.parametrize("calls", ["many one", "one many"])
def test_less_memory_makes_all_later_batches_smaller(lines, monkeypatch, caplog, calls):
    texts = lines.read_text().splitlines()
    inputs = {"many": [texts[96]] * 60, "one": [texts[96]] * 15}  # in parallel, a single batch
    embedder = opened_for_parallel(inputs["many"])
    expected = {name: embedder.encode(given) for name, given in inputs.items()}
    start = CompiledModel.start

    def small(self, batch, reduction):
        if len(batch.ids) > 1000:
            raise MemoryError
        return start(self, batch, reduction)

    monkeypatch.setattr(CompiledModel, "start", small)
    for name in calls.split():
        assert np.array_equal(embedder.encode(inputs[name]), expected[name])
    assert len([message for message in caplog.messages if "out of memory" in message]) == 1
    assert embedder.runtime.budget == embedder.runtime.parallel_runtime.budget == 1024


def test_threads_do_not_change_a_file(lines, tmp_path):
    good(
        "embed", "--backend", "openvino", "-i", lines, "-o", tmp_path / "one.npy", "--threads", "1"
    )
    good("embed", "--backend", "openvino", "-i", lines, "-o", tmp_path / "all.npy")
    assert (tmp_path / "one.npy").read_bytes() == (tmp_path / "all.npy").read_bytes()
