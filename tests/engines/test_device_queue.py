"""What a GPU is given, tried on a CPU: its kernel for packed texts, and its queue of batches."""

from itertools import pairwise
from weakref import WeakSet

import numpy as np
import pytest
import torch
from model_reference import randomise, tiny
from torch.nn import functional as F

from bertcli.engines.engine import PackedTokens, Runtime, StateSelection, result_of
from bertcli.engines.torch_engine import TorchEngine, fuse_gelu, varlen_kernel
from bertcli.errors import BertcliError
from bertcli.models.bert import BertModel

CPU = torch.device("cpu")
LENGTHS = [5, 1, 12, 12, 3, 24, 1, 2, 12, 5, 24, 7]


def one_by_one(bounds, longest):
    """Attend text by text, as `varlen` does all at once."""
    assert bounds.dtype == torch.int32
    assert int(bounds.diff().max()) == longest

    def attend(q, k, v, *_):
        parts = []
        for text in (slice(*pair) for pair in pairwise(bounds)):
            one = [x[text].transpose(0, 1) for x in (q, k, v)]
            parts.append(F.scaled_dot_product_attention(*one).transpose(0, 1))
        return torch.cat(parts)

    return attend


@pytest.fixture(scope="module")
def model():
    made = randomise(BertModel(tiny(num_hidden_layers=3)))
    return made


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(3)
    ids = draw.integers(0, 10, sum(LENGTHS), np.uint32)
    return PackedTokens(np.stack([ids, np.zeros_like(ids)], 1), np.cumsum([0, *LENGTHS]))


LAST = StateSelection()


def alone(model, selection=LAST):
    return runtime_of(TorchEngine(model, selection, CPU))


def runtime_of(encoder, budget=64):
    encoder.budget = budget
    return Runtime(None, None, [encoder])


def queue_of(encoder, budget=64):
    encoder.depth = 2  # as on a GPU
    return runtime_of(encoder, budget)


def states(model, packed, lengths):
    """Reduce to the states of every token."""
    return packed.split(list(lengths))


def first(model, packed, lengths):
    return packed[np.cumsum([0, *lengths[:-1]])]


@pytest.mark.parametrize(
    ("selection", "reduction"),
    [
        (StateSelection(), states),
        (StateSelection((0, 2, -1), "concat"), states),
        (StateSelection((-1, 1)), first),
        (StateSelection(first_token=True), first),
        (StateSelection(token_id=3), states),
    ],
)
def test_a_packed_batch_gives_the_vectors_of_the_padded_one(model, texts, selection, reduction):
    expected = result_of(alone(model, selection).run(texts, reduction))
    packed = alone(model, selection)
    packed.engine.varlen = one_by_one
    found = result_of(packed.run(texts, reduction))
    for one, another in zip(expected, found, strict=True):
        assert one.shape == another.shape
        assert np.abs(one - another).max(initial=0) < 1e-5


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, torch.float32),
        ({"position_embedding_type": "relative_key"}, torch.bfloat16),
        ({"is_decoder": True}, torch.bfloat16),
        ({}, torch.bfloat16),  # there is none for a CPU
    ],
)
def test_a_kernel_that_cannot_run_the_model_steps_aside(changes, dtype):
    assert varlen_kernel(randomise(BertModel(tiny(**changes))).to(dtype), CPU) is None


def test_gelu_within_a_product_is_that_behind_it():
    model, ids = randomise(BertModel(tiny())).eval(), torch.arange(10).view(2, 5)
    with torch.inference_mode():
        plain = model.hidden(ids)
        fuse_gelu(model)
        assert "forward" in vars(model.encoder.layer[0].intermediate)
        assert torch.allclose(model.hidden(ids), plain, atol=1e-6)


@pytest.mark.parametrize("reduction", [states, first])
def test_a_queue_gives_the_bits_of_its_encoder(model, texts, reduction):
    expected = result_of(alone(model).run(texts, reduction))
    queue = queue_of(TorchEngine(model, LAST, CPU))
    works = [queue.run(texts, reduction) for _ in range(3)]
    for work in works[::-1]:  # in whatever order somebody asks
        for one, another in zip(expected, result_of(work), strict=True):
            assert np.array_equal(one, another)
    assert len(result_of(queue.run(texts.take(np.arange(0)), states))) == 0


class SmallDevice(TorchEngine):
    """Runs out of memory with over ``room`` tokens, for which it has taken some."""

    room, taken = 40, WeakSet()

    def start(self, batch, reduction):
        memory = torch.empty(1)
        self.taken.add(memory)
        if len(batch.ids) > self.room:
            raise torch.OutOfMemoryError
        return super().start(batch, reduction)


def test_a_batch_that_failed_gives_its_memory_back(model, texts):
    queue = queue_of(SmallDevice(model, LAST, CPU), 150)
    work = queue.run(texts, first)
    queue.threads.shutdown()  # all batches were begun
    assert not queue.engine.taken
    del work


def test_memory_that_runs_out_halves_the_batches(model, texts, messages):
    expected = result_of(alone(model).run(texts, first))
    halves = queue_of(SmallDevice(model, LAST, CPU), 150)
    works = [halves.run(texts, first) for _ in range(2)]
    for work in works:
        assert np.abs(expected - result_of(work)).max() < 1e-5
    assert messages == [
        f"out of memory on cpu: batches of {n} tokens from here on" for n in (75, 37)
    ]
    halves.engine.room = 20
    with pytest.raises(BertcliError, match="out of memory on cpu"):
        result_of(halves.run(texts, first))
