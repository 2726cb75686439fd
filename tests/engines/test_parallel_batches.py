"""Batches that run at once on a CPU give the same bits, and stop when they are not wanted."""

import random
from unittest import mock

import numpy as np
import pytest
from front import good

from bertcli import Embedder
from bertcli.engines import openvino_engine
from bertcli.engines.openvino_engine import CompiledModel
from bertcli.engines.openvino_inputs import PaddedTexts

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


def test_a_cpu_that_changes_bits_gets_padded_texts(monkeypatch):
    texts = ["a text", "a longer text of more words"]
    expected = Embedder.load(backend="openvino").encode(texts)
    monkeypatch.setattr(openvino_engine, "PACKED_CPUS", ())
    monkeypatch.setattr(openvino_engine, "keeps_bits", lambda engine: False)
    embedder = Embedder.load(backend="openvino")
    assert isinstance(embedder.runtime.engine.layout, PaddedTexts)
    found = embedder.encode(texts)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.array_equal(embedder.encode(texts[0]), found[0])


def test_a_text_runs_on_all_threads_and_many_in_parallel(lines):
    texts = lines.read_text().splitlines()
    expected = Embedder.load(backend="openvino").encode(texts)
    embedder = Embedder.load(backend="openvino", parallel="auto")
    assert np.array_equal(embedder.encode(texts[0]), expected[0])
    assert np.array_equal(embedder.encode(texts[:9]), expected[:9])
    if embedder.runtime.engine.threads == 1:
        return
    assert embedder.runtime.opening is None  # few texts take no memory for it
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


def test_few_texts_are_divided_among_all_engines(lines, monkeypatch):
    texts = lines.read_text().splitlines()
    embedder = opened_for_parallel(texts)
    sizes = []
    start = CompiledModel.start

    def noted(self, batch, reduction):
        sizes.append(len(batch))
        return start(self, batch, reduction)

    monkeypatch.setattr(CompiledModel, "start", noted)
    embedder.encode(texts[20:28])
    assert sum(sizes) == 8 and len(sizes) >= embedder.runtime.parallel_runtime.engines


def with_memory_for(monkeypatch, most):
    """Have batches of more tokens run out of memory."""
    start = CompiledModel.start

    def small(self, batch, reduction):
        if len(batch.ids) > most:
            raise MemoryError
        return start(self, batch, reduction)

    monkeypatch.setattr(CompiledModel, "start", small)


@pytest.mark.parametrize("is_open", [False, True])
def test_less_memory_makes_all_later_batches_smaller(lines, monkeypatch, caplog, is_open):
    text = lines.read_text().splitlines()[96]
    embedder = Embedder.load(backend="openvino", parallel="auto")
    if is_open:
        embedder = opened_for_parallel([text] * 60)
    elif embedder.runtime.engine.threads == 1:
        pytest.skip("batches are run in parallel only on several cores")
    expected = embedder.encode(text)
    with_memory_for(monkeypatch, 1000)
    for count in (60, 15, 60):
        assert (embedder.encode([text] * count) == expected).all()
        assert embedder.runtime.opening.result().engines > 1
    assert len([message for message in caplog.messages if "out of memory" in message]) == 1
    assert embedder.runtime.budget == embedder.runtime.parallel_runtime.budget == 1024


@pytest.mark.parametrize("parallel", [False, True])
def test_batches_of_mixed_lengths_become_smaller(lines, monkeypatch, caplog, parallel):
    texts = lines.read_text().splitlines()
    embedder = Embedder.load(backend="openvino", parallel=parallel)
    expected = embedder.encode(texts)
    with_memory_for(monkeypatch, 300)
    assert np.array_equal(embedder.encode(texts), expected)
    assert embedder.runtime.budget == 256
    assert "batches of 256 tokens from here on" in caplog.messages[-1]


@pytest.mark.parametrize("failure", [OSError(), RuntimeError("a\nreason"), MemoryError()])
def test_without_parallel_engines_batches_run_one_after_another(
    lines, monkeypatch, caplog, failure
):
    texts = lines.read_text().splitlines()
    embedder = Embedder.load(backend="openvino", parallel="auto")
    if embedder.runtime.engine.threads == 1:
        pytest.skip("batches are run in parallel only on several cores")
    expected = Embedder.load(backend="openvino").encode(texts)
    monkeypatch.setattr(CompiledModel, "compiled_for_parallel", mock.Mock(side_effect=failure))
    for _ in range(3):
        assert np.array_equal(embedder.encode(texts), expected)
        embedder.runtime.opening.result()
    (message,) = [text for text in caplog.messages if "one after another" in text]
    reason = {OSError: "OSError", RuntimeError: "reason", MemoryError: "too little memory"}
    assert message.endswith(reason[type(failure)])


def test_threads_do_not_change_a_file(lines, tmp_path):
    good(
        "embed", "--backend", "openvino", "-i", lines, "-o", tmp_path / "one.npy", "--threads", "1"
    )
    good("embed", "--backend", "openvino", "-i", lines, "-o", tmp_path / "all.npy")
    assert (tmp_path / "one.npy").read_bytes() == (tmp_path / "all.npy").read_bytes()
