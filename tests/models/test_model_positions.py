"""Position schemes against literal loops: transformers no longer has the relative ones."""

import math

import pytest
import torch
from model_reference import close, randomise, texts, tiny

from bertcli.models.attention import Recording
from bertcli.models.bert import BertModel

RELATIVE = ["relative_key", "relative_key_query"]


def looped_scores(q, k, table, scheme):
    """Score each query against each key, one number at a time; q, k are [L, D]."""
    middle = (len(table) - 1) // 2
    scores = torch.empty(len(q), len(k))
    for i in range(len(q)):
        for j in range(len(k)):
            apart = table[i - j + middle]
            score = q[i] @ k[j] + q[i] @ apart
            if scheme == "relative_key_query":
                score = score + k[j] @ apart
            scores[i, j] = score / math.sqrt(q.shape[1])
    return scores


@pytest.mark.parametrize("scheme", RELATIVE)
@torch.no_grad()
def test_relative_positions_are_the_loop(scheme):
    model = randomise(BertModel(tiny(position_embedding_type=scheme))).eval()
    ids, keep, types = texts()
    maps = []
    before, after, *_ = model.states(ids, types=types, kernels=Recording(maps, keep))
    attention = model.encoder.layer[0].attention
    table = attention.self.distance_embedding.weight
    assert table.shape == (2 * 24 - 1, 8)
    for text in range(3):
        x = before[text][keep[text].bool()]
        heads = []
        for head in range(4):
            part = slice(head * 8, head * 8 + 8)
            q, k, v = (
                (x @ linear.weight.T + linear.bias)[:, part]
                for linear in (attention.self.query, attention.self.key, attention.self.value)
            )
            probabilities = looped_scores(q, k, table, scheme).softmax(-1)
            close(maps[0][text, head, : len(x), : len(x)], probabilities)
            heads.append(probabilities @ v)
        layer = model.encoder.layer[0]
        expected = layer.feed_forward(attention.output(torch.cat(heads, -1), x))
        close(after[text][keep[text].bool()], expected)
    close(model.hidden(ids, keep, types), [*model.encoder.states(before, Recording([], keep))][-1])


@torch.no_grad()
def test_sinusoidal_model_has_no_position_table_and_sees_order():
    model = randomise(BertModel(tiny(position_embedding_type="sinusoidal"))).eval()
    assert not [name for name in model.state_dict() if "position" in name]
    ids = torch.randint(1, 97, (1, 40))  # longer than any table
    assert not torch.allclose(model.hidden(ids)[0, 0], model.hidden(ids.flip(1))[0, -1], atol=1e-3)
