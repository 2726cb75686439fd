"""The CPU engine with a model of each family: the numbers of torch, the same bits in any batch."""

import random
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from family_models import ROWS
from front import good
from model_reference import TINY, randomise
from task_models import SIZES, tokenizer

from bertcli.embedding.pooling import Pooling
from bertcli.engines import openvino_engine, openvino_inputs
from bertcli.engines.compute import Compute, has_bfloat16
from bertcli.engines.engine import ModelSpec, PackedTokens, Runtime, StateSelection, result_of
from bertcli.engines.openvino_engine import open_compiled
from bertcli.families.registry import FAMILIES
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.load import save
from bertcli.models.activations import ACTIVATIONS
from bertcli.models.bert import BertModel
from bertcli.models.config import BertConfig

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")

WORDS = ["a", "no", "NLP", "bank", "river", "[PAD]", "[MASK]", "Ouagadougou", "."]
TEXTS = [" ".join(random.Random(at).choices(WORDS, k=1 + 5 * at % 23)) for at in range(12)]
ORDER = random.Random(1).sample(range(len(TEXTS)), len(TEXTS))
FORMATS = [  # worst cosine to float32; weights are random, and wide: no real model is as far
    ("float32", 1 - 1e-6),
    ("bfloat16", 0.99),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make folders of transformers' models, each once."""
    import transformers

    root = tmp_path_factory.mktemp("families")

    def made(row):
        path = root / row.model_type
        if not path.exists():
            page = FAMILIES[row.model_type]
            said = {page.key(key): size for key, size in SIZES.items()} | dict(row.more)
            config = transformers.AutoConfig.for_model(row.model_type, **said, pad_token_id=0)
            randomise(getattr(transformers, f"{row.prefix}Model")(config)).save_pretrained(path)
            tokenizer().save_pretrained(path)
        return path

    return made


@pytest.mark.parametrize(("dtype", "near"), FORMATS)
@pytest.mark.parametrize("row", [row for row in ROWS if not row.alike], ids=lambda it: it.prefix)
def test_vectors_are_those_of_torch_and_have_the_same_bits_in_any_batch(
    tmp_path, row, folder, dtype, near
):
    if dtype == "bfloat16" and not has_bfloat16():
        pytest.skip("this CPU has no bfloat16 arithmetic")

    def vectors(texts, *options):
        out = tmp_path / "out.npy"
        chosen = ("-m", folder(row), "--on-truncate", "ignore", "--overwrite", *options)
        good("embed", "-q", *texts, "-o", out, *chosen)
        return np.load(out)

    compiled = ("--backend", "openvino", "--dtype", dtype)
    for pooling in ("mean", "cls") if dtype == "float32" else ("mean",):
        chosen = ("--pooling", pooling, "--normalize")
        torchs, ours = vectors(TEXTS, *chosen), vectors(TEXTS, *chosen, *compiled)
        assert (ours * torchs).sum(1).min() >= near
        if dtype == "float32":
            np.testing.assert_allclose(ours, torchs, atol=1e-5)
        shuffled = vectors([TEXTS[at] for at in ORDER], *chosen, *compiled, "--batch-tokens", 40)
        assert np.array_equal(shuffled, ours[ORDER])


DEBERTA = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
LONG = {"max_position_embeddings": 4096}
LONG_MODELS = [
    {},
    {"model_type": "gte"},
    {"model_type": "modernbert", "pad_token_id": 0, "local_attention": 128},
    {**DEBERTA, "conv_kernel_size": 3, "conv_groups": 2, "conv_act": "gelu"},
    {"model_type": "mpnet"},
    {"model_type": "roberta", "pad_token_id": 1},
    {"position_embedding_type": "relative_key_query"},
    {"is_decoder": True},
]


@pytest.mark.parametrize("changes", LONG_MODELS, ids=lambda it: " ".join(map(str, it.values())))
def test_a_text_has_the_same_bits_beside_a_much_longer_one(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(openvino_inputs, "MAX_PADDING_PRODUCTS", 1 << 40)  # all in one batch
    config = BertConfig.from_dict({**TINY, **LONG, **changes})
    save(randomise(BertModel(config, pooler=False)).eval(), config, tmp_path)
    lengths = [3, 17, 100, 513, 530, 700, 1023, 1040, 1500, 2050]
    ids = np.random.default_rng(0).integers(1, 97, sum(lengths))
    columns = np.stack([ids, np.zeros_like(ids)], 1).astype(np.uint32)
    texts = PackedTokens(columns, np.cumsum([0, *lengths]))
    spec = ModelSpec(ModelFolder(tmp_path), Compute(dtype="float32", batch_tokens=sum(lengths)))
    runtime = Runtime(spec, None, [open_compiled(spec, lambda: None)])
    together = result_of(runtime.run(texts, Pooling(("none",))))
    for index, states in enumerate(together):
        alone = result_of(runtime.run(texts.take(np.array([index])), Pooling(("none",))))
        assert np.array_equal(alone[0], states)


CHANGES = [
    *({"position_embedding_type": kind} for kind in ("relative_key", "relative_key_query")),
    {"position_embedding_type": "sinusoidal", "hidden_size": 36},
    {"is_decoder": True},
    {"is_decoder": True, "position_embedding_type": "relative_key"},
    {"is_decoder": True, "add_cross_attention": True},
    {"pruned_heads": {"0": [1, 2], "2": [0]}},
    {"extra_embeddings": {"tone": 4, "mood": 3}},
    *({"hidden_act": act} for act in ACTIVATIONS),
    {"model_type": "roberta", "pad_token_id": 5, "max_position_embeddings": 40},
    {"model_type": "albert", "num_hidden_groups": 2, "embedding_size": 8},
    {"model_type": "deberta-v2"},
    {**DEBERTA, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    {**DEBERTA, "max_relative_positions": 6},
    {**DEBERTA, "pos_att_type": "p2c", "position_biased_input": False, "type_vocab_size": 2},
    {**DEBERTA, "pos_att_type": []},
    {**DEBERTA, "conv_kernel_size": 3, "conv_groups": 2, "conv_act": "gelu"},
    {
        "model_type": "modernbert",
        "pad_token_id": 0,
        "local_attention": 6,
        "attention_bias": True,
        "norm_bias": True,
    },
    {"model_type": "gte", "rope_scaling": {"type": "linear", "factor": 2.5}},
    {
        "model_type": "eurobert",
        "pad_token_id": 0,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "attention_bias": True,
        "mlp_bias": True,
    },
]


@torch.inference_mode()
@pytest.mark.parametrize("changes", CHANGES, ids=lambda it: " ".join(map(str, it.values())))
def test_states_are_those_of_torch(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(openvino_engine, "PACKED_CPUS", ())  # test this one
    config = BertConfig.from_dict({**TINY, **changes})
    model = randomise(BertModel(config, pooler=False)).eval()
    save(model, config, tmp_path)
    generator = random.Random(3)
    ids = [generator.choices(range(1, 97), k=length) for length in (1, 2, 15, 16, 17, 23, 23)]
    types = [[min(config.type_vocab_size - 1, at % 2) for at in range(len(row))] for row in ids]
    tables = config.extra_embeddings.items()
    flat, kinds = np.concatenate(ids), np.concatenate(types)
    columns = [
        flat,
        kinds if config.structure.token_types else np.zeros_like(kinds),
        *(np.arange(len(flat)) % size for _, size in tables),
    ]
    offsets = np.cumsum([0, *map(len, ids)])
    texts = PackedTokens(
        np.stack(columns, 1).astype(np.uint32), offsets, [*config.extra_embeddings]
    )
    for selection in (
        StateSelection((0, 1, -1), "stack"),
        StateSelection((1, -1), "concat", first_token=True),
    ):
        spec = ModelSpec(ModelFolder(tmp_path), Compute(dtype="float32"), selection=selection)
        runtime = Runtime(spec, None, [open_compiled(spec, lambda: None)])
        assert isinstance(runtime.engine.layout, openvino_inputs.PackedTexts)
        ours = result_of(runtime.run(texts, Pooling(("cls" if selection.first_token else "none",))))
        for at, (row, kinds) in enumerate(zip(ids, types, strict=True)):
            extra = {
                name: torch.from_numpy(flat[texts.offsets[at] : texts.offsets[at + 1]])[None]
                for (name, _), flat in zip(tables, columns[2:], strict=True)
            }
            given = {"types": torch.tensor([kinds]), "extra": extra}
            every = [state[0].numpy() for state in model.states(torch.tensor([row]), **given)]
            right = np.stack([every[0], every[1], every[-1]], 1)
            if selection.first_token:
                right = np.concatenate([every[1][0], every[-1][0]])
            np.testing.assert_allclose(ours[at], right, atol=1e-5, rtol=1e-5)
            if not at:
                alone = result_of(runtime.run(texts.take(np.array([at])), Pooling(("none",))))
                assert np.array_equal(np.ravel(alone[0]), np.ravel(ours[at]))
