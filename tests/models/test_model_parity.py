"""Our BERT against transformers', with weights wide enough that nothing hides."""

from dataclasses import replace

import pytest
import torch
from model_reference import close, load, texts, theirs, tiny

from bertcli.errors import ModelError
from bertcli.model_folder.load import save
from bertcli.models.activations import ACTIVATIONS
from bertcli.models.attention import Recording, padded
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import Decoder
from bertcli.models.heads import ARCHITECTURES

pytestmark = pytest.mark.parity


def call(model, ids, keep, types, **more):
    return model(ids, attention_mask=keep, token_type_ids=types, **more)


@pytest.mark.parametrize("name", ACTIVATIONS)
@torch.no_grad()
def test_activations_are_those_of_transformers(name):
    reference = theirs(hidden_act=name, num_hidden_layers=1)
    model = load(BertModel(tiny(hidden_act=name, num_hidden_layers=1)), reference)
    ids, keep, types = texts()
    close(model(ids, keep, types)[0], call(reference, ids, keep, types).last_hidden_state)


def test_a_function_may_be_the_activation(tmp_path):
    ids, keep, types = texts()
    named, given = (
        load(BertModel(replace(tiny(), hidden_act=act)), theirs())
        for act in ("silu", torch.nn.functional.silu)
    )
    assert torch.equal(given(ids, keep, types)[0], named(ids, keep, types)[0])
    with pytest.raises(ModelError, match="cannot hold a function"):
        save(given, given.config, tmp_path)


@torch.no_grad()
def test_positions_and_vectors_in_place_of_ids_are_those_of_transformers():
    reference = theirs()
    model = load(BertModel(tiny()), reference)
    ids, keep, types = texts()
    at = torch.arange(ids.shape[1]).flip(0).expand(ids.shape)
    vectors = reference.embeddings.word_embeddings(ids) + 0.1
    expected = reference(
        inputs_embeds=vectors, attention_mask=keep, token_type_ids=types, position_ids=at
    )
    close(model(vectors, keep, types, at).last_hidden_state, expected.last_hidden_state)


def test_untied_decoder_is_that_of_transformers():
    reference = theirs("BertForMaskedLM", tie_word_embeddings=False)
    model = load(ARCHITECTURES["BertForMaskedLM"](tiny(tie_word_embeddings=False)), reference)
    words = model.bert.embeddings.word_embeddings.weight
    assert model.cls.predictions.decoder.weight is not words
    ids, keep, types = texts()
    close(model(ids, keep, types).logits, call(reference, ids, keep, types).logits)


@torch.no_grad()
def test_decoder_with_cross_attention_is_that_of_transformers():
    changes = {"is_decoder": True, "add_cross_attention": True}
    reference = theirs("BertLMHeadModel", **changes)
    model = load(ARCHITECTURES["BertLMHeadModel"](tiny(**changes)), reference)
    ids, keep, types = texts()
    _, read_keep, _ = texts(length=10)
    states = torch.randn(3, 10, 32, generator=torch.Generator().manual_seed(1))
    expected = call(
        reference,
        ids,
        keep,
        types,
        encoder_hidden_states=states,
        encoder_attention_mask=read_keep,
    ).logits
    memory = model.bert.memories_of(states, padded(read_keep))
    close(model.logits(Decoder(model.bert, memory)(ids, keep, types)), expected)
    # Without an encoder the same model skips its cross-attention, there and here.
    close(model(ids, keep, types).logits, call(reference, ids, keep, types).logits)


def from_to(keep):
    """A mask [B, L, L] that is neither all of the tokens nor one way, and no row is empty."""
    generator = torch.Generator().manual_seed(4)
    length = keep.shape[1]
    drawn = torch.rand(len(keep), length, length, generator=generator) < 0.6
    return (drawn & keep[:, None].bool()) | torch.eye(length, dtype=torch.bool)


@pytest.mark.parametrize("is_decoder", [False, True])
@torch.no_grad()
def test_masks_of_queries_and_keys_are_those_of_transformers(is_decoder):
    """4.57 takes [B, L, L] and adds nothing to it; 5.23 takes it with an axis of heads, ready."""
    reference = theirs(is_decoder=is_decoder)
    model = load(BertModel(tiny(is_decoder=is_decoder)), reference)
    ids, keep, types = texts()
    mask = from_to(keep)
    ready = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[:, None]
    expected = call(reference, ids, ready, types, output_attentions=True)
    for given in (mask, mask.long(), mask.float()):
        close(model(ids, given, types).last_hidden_state, expected.last_hidden_state)
    maps = []
    model(ids, types=types, kernels=Recording(maps, mask))
    for got, wanted in zip(maps, expected.attentions, strict=True):
        close(got, wanted)
    if is_decoder:
        decode, parts = Decoder(model), []
        for at in range(ids.shape[1]):
            step = mask[:, at : at + 1, : at + 1]
            parts.append(decode(ids[:, at : at + 1], step, types[:, at : at + 1]))
        backwards = mask & torch.ones(12, 12).tril().bool()
        close(torch.cat(parts, 1), model.hidden(ids, backwards, types))


@pytest.mark.parametrize("shape", [(3, 11), (2, 12), (3, 12, 11), (3, 11, 12), (3, 1, 12, 12), ()])
@pytest.mark.parametrize("is_decoder", [False, True])
def test_masks_of_other_shapes_are_refused(shape, is_decoder):
    model = BertModel(tiny(is_decoder=is_decoder))
    ids, _, _ = texts()
    with pytest.raises(ValueError, match=r"does not fit scores \[3, 1, 12, 12\]"):
        model(ids, torch.ones(shape))


def test_train_mode_without_dropout_gives_their_values_and_gradients():
    changes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    reference = theirs("BertForPreTraining", **changes).train()
    model = load(ARCHITECTURES["BertForPreTraining"](tiny(**changes)), reference).train()
    ids, keep, types = texts()
    words, pair = model(ids, keep, types)
    expected = call(reference, ids, keep, types)
    close(words, expected.prediction_logits)
    (words.logsumexp(-1).mean() + pair.sigmoid().mean()).backward()
    their_words, their_pair = expected.prediction_logits, expected.seq_relationship_logits
    (their_words.logsumexp(-1).mean() + their_pair.sigmoid().mean()).backward()
    wanted = dict(reference.named_parameters())
    for name, weight in model.named_parameters():
        close(weight.grad, wanted[name].grad)


def test_dropout_drops_as_often_as_that_of_transformers():
    """The mean over many passes is near theirs: each of the places drops, and scales up."""
    changes = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.4}
    reference = theirs(num_hidden_layers=1, **changes).train()
    model = load(BertModel(tiny(num_hidden_layers=1, **changes)), reference).train()
    ids = texts()[0][:1].expand(4000, -1)
    torch.manual_seed(0)
    with torch.no_grad():
        got, wanted = model.hidden(ids), reference(ids).last_hidden_state
    close(got.mean(0), wanted.mean(0), 0.06)
    close(got.std(0), wanted.std(0), 0.06)
