"""A text's vectors do not depend on its batch, its padding, or its layout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_reference import close, encode, randomise, texts, tiny

from bertcli.models.bert import BertModel

SCHEMES = ["absolute", "relative_key", "relative_key_query", "sinusoidal"]


def model_of(**changes):
    """In double precision, so that equal means equal to ten digits."""
    return randomise(BertModel(tiny(**changes))).double().eval()


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_alone_in_a_batch_and_packed_agree(scheme, is_decoder):
    model = model_of(position_embedding_type=scheme, is_decoder=is_decoder)
    ids, keep, types = texts()
    kept, lengths = keep.bool(), keep.sum(1).tolist()
    batch = model.hidden(ids, keep, types)[kept]
    alone = [
        model.hidden(i[k][None], types=t[k][None])[0]
        for i, k, t in zip(ids, kept, types, strict=True)
    ]
    close(batch, torch.cat(alone), 1e-10)
    close(encode(model, ids[kept], lengths, types[kept]), batch, 1e-10)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
@torch.no_grad()
def test_packed_texts_of_any_lengths_are_the_texts_alone(lengths):
    model = model_of(num_hidden_layers=1)
    rows = [torch.arange(1, length + 1) * (i + 1) for i, length in enumerate(lengths)]
    got = encode(model, torch.cat(rows), lengths)
    for row, hidden in zip(rows, got.split(lengths), strict=True):
        close(hidden, model.hidden(row[None])[0], 1e-10)


@torch.no_grad()
def test_a_text_of_nothing_but_padding_is_finite():
    model = model_of()
    ids, keep, types = texts()
    keep[1] = 0
    assert model.hidden(ids, keep, types).isfinite().all()


@torch.no_grad()
def test_extra_embeddings_are_added_to_the_sum():
    model = model_of(extra_embeddings={"emotion": 5, "syllable": 9})
    ids, keep, types = texts()
    streams = {"emotion": ids % 5, "syllable": ids % 9}
    got = model(ids, keep, types, extra=streams).last_hidden_state
    assert "embeddings.extra.emotion.weight" in model.state_dict()
    vectors = model.embeddings.word_embeddings(ids)
    for name, stream in streams.items():
        vectors = vectors + model.embeddings.extra[name].weight[stream]
        model.embeddings.extra[name].weight.zero_()
    close(got, model.hidden(vectors, keep, types, extra=streams), 1e-10)


@pytest.mark.parametrize(
    ("tables", "given"), [({"emotion": 5}, None), ({}, {"emotion": torch.ones(3, 12).long()})]
)
def test_extra_ids_must_be_those_of_the_model(tables, given):
    with pytest.raises(ValueError, match="extra ids for"):
        model_of(extra_embeddings=tables)(texts()[0], extra=given)
