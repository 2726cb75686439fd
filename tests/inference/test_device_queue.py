"""What a GPU is given, tried on a CPU: its queue of batches."""

import numpy as np
import pytest
import torch
from model_reference import randomise, tiny

from bertcli.errors import BertcliError
from bertcli.inference.runner import Reading, Runner, Tokens, first_tokens, result_of
from bertcli.inference.torch_engine import Encoder
from bertcli.models.bert import BertModel

LENGTHS = [5, 1, 12, 12, 3, 24, 1, 2, 12, 5, 24, 7]


@pytest.fixture(scope="module")
def model():
    made = randomise(BertModel(tiny(num_hidden_layers=3)))
    return made


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(3)
    ids = draw.integers(0, 10, sum(LENGTHS), np.uint32)
    return Tokens(ids, np.zeros(len(ids), np.uint8), np.cumsum([0, *LENGTHS]))


LAST = Reading()


def alone(model):
    return Runner([Encoder(model, LAST)], 64)


def queue_of(encoder, budget=64):
    encoder.depth = 2  # as on a GPU
    return Runner([encoder], budget)


def states(model, packed, lengths):
    """Finish with the states of every token."""
    return packed.split(list(lengths))


def first(model, packed, lengths):
    return first_tokens(packed, lengths)


@pytest.mark.parametrize("finish", [states, first])
def test_a_queue_gives_the_bits_of_its_encoder(model, texts, finish):
    expected = result_of(alone(model).run(texts, finish))
    queue = queue_of(Encoder(model, LAST))
    works = [queue.run(texts, finish) for _ in range(3)]
    for work in works[::-1]:  # in whatever order somebody asks
        for one, another in zip(expected, result_of(work), strict=True):
            assert np.array_equal(one, another)
    assert len(result_of(queue.run(texts.take(np.arange(0)), states))) == 0


class SmallDevice(Encoder):
    """Runs out of memory with over ``room`` tokens."""

    room = 40

    def begin(self, batch, finish):
        if len(batch.ids) > self.room:
            raise torch.OutOfMemoryError
        return super().begin(batch, finish)


def test_memory_that_runs_out_halves_the_batches(model, texts):
    expected = result_of(alone(model).run(texts, first))
    halves = queue_of(SmallDevice(model, LAST), 150)
    said: list[str] = []
    works = [halves.run(texts, first) for _ in range(2)]
    for work in works:
        assert np.abs(expected - result_of(work, said.append)).max() < 1e-5
    assert said == [f"out of memory on cpu: batches of {n} tokens from here on" for n in (75, 37)]
    halves.devices[0].room = 20
    with pytest.raises(BertcliError, match="out of memory on cpu"):
        result_of(halves.run(texts, first))
