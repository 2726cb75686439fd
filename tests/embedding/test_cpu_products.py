"""A prepared model gives the numbers of the plain one; 8 bits are near; [CLS] needs less work."""

import numpy as np
import pytest
import torch
from front import call, on_torch
from model_reference import close, randomise, texts, tiny

from bertcli.embedding.embedder import Embedder
from bertcli.embedding.pooling import Pooling
from bertcli.errors import ModelError, UsageError
from bertcli.hub import MODEL_FILES, find_model
from bertcli.inference.encoder import Encoder
from bertcli.inference.runner import Reading, Tokens, result_of
from bertcli.models import cpu_products as products
from bertcli.models import surgery
from bertcli.models.bert import BertModel
from bertcli.models.calibration_sample import SAMPLE
from bertcli.models.int8 import MIDDLE, MORE, Bytes, EightBitFeedForward
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
    assert prepare(model, "auto", CPU).startswith(("prepacked", "plain ("))
    for got, wanted in zip(model.states(*texts()), expected, strict=True):
        close(got, wanted)


@torch.inference_mode()
def test_a_pruned_model_with_extra_embeddings_is_prepared():
    for dtype, tolerance in (("auto", 1e-5), ("int8", 0.5)):
        model = model_of(extra_embeddings={"emotion": 5})
        prune_heads(model, {0: {1}, 2: {0, 2, 3}})
        extra = {"emotion": texts()[0] % 5}
        expected = model(*texts(), extra=extra)
        prepare(model, dtype, CPU, IDS)
        close(model(*texts(), extra=extra), expected, tolerance)


@torch.inference_mode()
def test_without_onednn_the_products_are_torchs_and_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(surgery, "cannot_prepack", lambda dtype: "no reason")
    model = model_of()
    expected = model(*texts())
    assert prepare(model, "auto", CPU) == "plain (no reason)"
    close(model(*texts()), expected)


def test_what_cannot_be_prepacked_has_a_reason():
    assert products.cannot_prepack(torch.float64) == "oneDNN is not asked for float64"


@pytest.mark.parametrize("changes", VARIANTS)
@torch.inference_mode()
def test_8_bits_are_near(changes):
    model = model_of(**changes)
    expected = model(*texts())[texts()[1].bool()]
    assert prepare(model, "int8", CPU, IDS) == "int8"
    got = model(*texts())[texts()[1].bool()]
    assert torch.cosine_similarity(got, expected, dim=-1).min() > 0.99
    assert not torch.equal(got, expected)


def test_bytes_hold_what_was_seen_to_half_a_step_and_say_what_does_not_fit():
    seen = torch.cat([torch.full((40,), 1.0), torch.tensor([24.0, 3.0, 2.5])])
    weight = torch.eye(len(seen))
    bytes_ = Bytes(weight, seen[None], 1.25)
    draw = torch.Generator().manual_seed(0)
    x = (torch.rand(500, len(seen), generator=draw) * 2 - 1) * seen * 1.25
    whole, fits = bytes_(x)
    assert fits.all() and whole.shape == (500, len(seen) + MORE)
    smooth = weight * bytes_.smooth
    widened = torch.cat([smooth, smooth[:, bytes_.of]], 1)
    back = (whole.float() - MIDDLE) @ widened.T * bytes_.scale
    step = bytes_.scale * bytes_.smooth
    assert ((back - x).abs() <= step / 2 * 1.0001).all()
    assert step[0] < 1.25 * 24 / 126 / 5  # the one far unit does not set the scale of the others
    x[3, 40], x[7, 0] = 1e6, -5.0
    assert (~bytes_(x)[1]).nonzero()[:, 0].tolist() == [3, 7]


@torch.inference_mode()
def test_a_token_that_does_not_fit_the_scales_is_float32():
    layer = model_of().encoder.layer[0]
    exact, seen = layer.feed_forward, (torch.full((1, 32), 0.5), torch.full((1, 48), 0.5))
    parts = layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm
    block = EightBitFeedForward(*parts, seen, products.Plain)
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(0)) * 0.1
    x[2], x[4, 3] = x[2] * 1000, -700.0
    got, expected = block(x, x), exact(x)
    close(got[[2, 4]], expected[[2, 4]])
    assert not torch.equal(got, expected)
    close(block(x[3:4], x[3:4]), got[3:4], 1e-6)


def test_8_bits_are_refused_off_the_cpu(monkeypatch):
    with pytest.raises(UsageError, match="--dtype int8 is not possible: cuda:0 is not a CPU"):
        prepare(model_of(), "int8", torch.device("cuda:0"), IDS)
    monkeypatch.setattr(surgery, "cannot_multiply", lambda: "not exact")
    with pytest.raises(UsageError, match="--dtype int8 is not possible: not exact"):
        prepare(model_of(), "int8", CPU, IDS)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", ["embeddings.word_embeddings", "encoder.layer.2.output.dense"])
@pytest.mark.parametrize("place", [(7, 0), (31, 3)])  # tokens of the sample, or of none
def test_8_bits_are_refused_for_numbers_that_cannot_be_rounded(name, value, place):
    model = model_of()
    with torch.no_grad():
        model.get_submodule(name).weight[place] = value
    with pytest.raises(ModelError, match="--dtype int8 is not possible: weights, or what they"):
        prepare(model, "int8", CPU, IDS)


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


def test_8_bits_of_the_default_model():
    _, exact = vectors("float32", OTHER)
    embedder, near = vectors("int8", OTHER)
    alike = torch.cosine_similarity(near, exact, dim=-1)
    assert alike.min() > 0.99 and alike.mean() > 0.999
    assert embedder.chosen()["dtype"] == "int8" and embedder.chosen()["linear"] == "int8"
    texts = [range(1000 + n, 1000 + 2 * n) for n in (3, 9, 40)]
    together = result_of(embedder._run(Tokens.listed(texts)))
    for text, vector in zip(texts, together, strict=True):
        (alone,) = result_of(embedder._run(Tokens.listed([text])))
        assert np.abs(alone - vector).max() < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_threads_do_not_change_the_vectors(dtype):
    argv = ["embed", "--dtype", dtype, "--device", "cpu", *OTHER, *SAMPLE]
    each = [
        torch.tensor([row["embedding"] for row in call(*argv, "--threads", n).rows])
        for n in (1, 2, 3, 8)
    ]
    assert each[0].shape == (len(OTHER) + len(SAMPLE), 384)
    for got in each[1:]:
        close(got, each[0], 1e-6)


def test_bfloat16_of_the_default_model_is_near():
    _, exact = vectors("float32", SAMPLE)
    _, near = vectors("bfloat16", SAMPLE)
    assert torch.cosine_similarity(near, exact, dim=-1).min() > 0.999


def test_verbose_says_how():
    done = call("embed", "hi", "-v", "--dtype", "int8")
    assert done.code == 0
    assert "kernel packed, linear int8" in " ".join(done.err.split())


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
    prepare(prepared, "auto", CPU)
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
