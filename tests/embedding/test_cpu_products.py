"""A prepared model gives the numbers of the plain one; [CLS] needs less work."""

import numpy as np
import pytest
import torch
from front import call, on_torch
from model_reference import close, randomise, texts, tiny

from bertcli.embedding.embedder import Embedder
from bertcli.embedding.pooling import Pooling
from bertcli.hub import MODEL_FILES, find_model
from bertcli.inference.encoder import Encoder
from bertcli.inference.runner import Reading, Tokens, result_of
from bertcli.models import cpu_products as products
from bertcli.models import surgery
from bertcli.models.bert import BertModel
from bertcli.models.surgery import prepare, prune_heads
from bertcli.records.reader import Reader
from bertcli.records.source import Source

CPU = torch.device("cpu")
IDS = [list(range(1, 20)), [5, 96, 3, 2, 50], [7]]
VARIANTS = [
    {},
    {"hidden_act": "gelu_new"},
    {"hidden_act": "relu"},
    {"position_embedding_type": "relative_key_query"},
    {"is_decoder": True},
    {"chunk_size_feed_forward": 5},
]


def model_of(**changes):
    return randomise(BertModel(tiny(**changes))).eval()


@pytest.mark.parametrize("changes", VARIANTS)
@torch.inference_mode()
def test_a_prepared_model_gives_the_same_states(changes):
    model = model_of(**changes)
    expected = list(model.states(*texts()))
    assert prepare(model, CPU).startswith(("prepacked", "plain ("))
    for got, wanted in zip(model.states(*texts()), expected, strict=True):
        close(got, wanted)


@torch.inference_mode()
def test_a_pruned_model_with_extra_embeddings_is_prepared():
    model = model_of(extra_embeddings={"emotion": 5})
    prune_heads(model, {0: {1}, 2: {0, 2, 3}})
    extra = {"emotion": texts()[0] % 5}
    expected = model(*texts(), extra=extra)
    prepare(model, CPU)
    close(model(*texts(), extra=extra), expected)


@torch.inference_mode()
def test_without_onednn_the_products_are_torchs_and_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(surgery, "cannot_prepack", lambda dtype: "no reason")
    model = model_of()
    expected = model(*texts())
    assert prepare(model, CPU) == "plain (no reason)"
    close(model(*texts()), expected)


def test_what_cannot_be_prepacked_has_a_reason():
    assert products.cannot_prepack(torch.float64) == "oneDNN is not asked for float64"


# --- the default model ---


def vectors(dtype, texts, **options):
    folder = find_model("sentence-transformers/all-MiniLM-L6-v2", files=MODEL_FILES)
    embedder = Embedder.open(folder, on_torch(dtype=dtype, **options))
    run = embedder.run(Reader(Source(texts=tuple(texts))))
    found = [torch.from_numpy(item.vector) for part in embedder.embed(run) for item in part]
    return embedder, torch.stack(found)


OTHER = (
    "I love NLP!",
    "The quick brown fox jumps over the lazy dog.",
    "Three people were hurt when a lorry left the road near Porto on Sunday evening.",
    "The film is far too long, but the last ten minutes are worth every one of them. " * 9,
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_do_not_change_the_vectors(dtype):
    argv = ["embed", "--backend", "torch", "--dtype", dtype, *OTHER]
    each = [
        torch.tensor([row["embedding"] for row in call(*argv, "--threads", n).rows])
        for n in (1, 2, 3, 8)
    ]
    assert each[0].shape == (len(OTHER), 384)
    for got in each[1:]:
        close(got, each[0], 1e-6)


def test_bfloat16_of_the_default_model_is_near():
    _, exact = vectors("float32", OTHER)
    _, near = vectors("bfloat16", OTHER)
    assert torch.cosine_similarity(near, exact, dim=-1).min() > 0.999


def test_verbose_says_how():
    done = call("embed", "hi", "-v", "--backend", "torch")
    assert done.code == 0
    assert "kernel packed, linear p" in " ".join(done.err.split())


# --- the first token only ---


@pytest.mark.parametrize("layers", [(-1,), (1, -1), (0,), (2,)])
@pytest.mark.parametrize("kernel", ["packed", "padded"])
@pytest.mark.parametrize("changes", [*VARIANTS[3:5], {}])
def test_first_tokens_alone_are_those_of_the_whole(changes, kernel, layers, monkeypatch):
    monkeypatch.setattr(Encoder, "kernel", kernel)
    batch = Tokens.listed([*IDS, IDS[1][::-1]])
    model = model_of(**changes)
    rows = []
    for layer in model.encoder.layer:
        layer.output.register_forward_hook(lambda _, i, out: rows.append(out.numel() // 32))
    prepared = model_of(**changes)
    prepare(prepared, CPU)
    whole = result_of(Encoder(model, Reading(layers), 64).run(batch, Pooling(("cls",))))
    rows.clear()
    for one in (model, prepared):
        encoder = Encoder(one, Reading(layers, first=True), 64)
        got = result_of(encoder.run(batch, Pooling(("cls",))))
        close(torch.from_numpy(np.stack(got)), torch.from_numpy(np.stack(whole)))
    if layers == (-1,):
        assert rows[-1] <= len(batch) < rows[0]


def test_cls_and_pooler_read_first_tokens_only():
    embedder, _ = vectors("auto", OTHER[:1], pooling="cls")
    assert embedder.runtime.encoder.reading.first
    embedder, _ = vectors("auto", OTHER[:1], pooling="mean")
    assert not embedder.runtime.encoder.reading.first
