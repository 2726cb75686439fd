"""Token vectors of ColBERT's kind against sentence-transformers' MultiVectorEncoder."""

import json
import shutil
import string

import numpy as np
import pytest
import torch
import transformers
from front import PACKAGE, bad, good
from model_reference import randomise
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from task_models import texts

pytestmark = pytest.mark.parity
TINY = PACKAGE / "samples" / "tiny-bert"
TEXTS = [*texts(6, 30), "Hello, world! (really)...", "a"]
EMBED = ("embed", "-q", "--token-vectors", "--threads", 1)
WIDTH = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("late")


@pytest.fixture(scope="module")
def base(root):
    """The encoder of all of them."""
    torch.manual_seed(0)
    config = transformers.BertConfig.from_pretrained(TINY)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    randomise(model)
    model.save_pretrained(root / "base")
    transformers.AutoTokenizer.from_pretrained(TINY).save_pretrained(root / "base")
    return root / "base"


def native(base, place, words=(), **knobs):
    torch.manual_seed(1)
    modules = [
        Transformer(str(base), **knobs),
        Dense(
            32,
            WIDTH,
            bias=False,
            activation_function=torch.nn.Identity(),
            module_input_name="token_embeddings",
        ),
        MultiVectorMask(skiplist_words=list(words)),
        Normalize(module_input_name="token_embeddings"),
    ]
    made = MultiVectorEncoder(modules=modules, device="cpu")
    made.save(str(place))
    return place


def pylate(base, place, **settings):
    """A folder as PyLate writes it."""
    shutil.copytree(base, place)
    dense = place / "1_Dense"
    dense.mkdir()
    torch.manual_seed(2)
    save_file({"linear.weight": torch.randn(WIDTH, 32) / 5}, dense / "model.safetensors")
    config = {"in_features": 32, "out_features": WIDTH, "bias": False}
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    (dense / "config.json").write_text(json.dumps(config))
    kinds = ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"]
    modules = [
        {"idx": at, "name": str(at), "path": "1_Dense" * at, "type": kind}
        for at, kind in enumerate(kinds)
    ]
    (place / "modules.json").write_text(json.dumps(modules))
    told = {"model_type": "ColBERT", "query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    text = json.dumps(told | {"query_length": 20, "document_length": 30} | settings)
    (place / "config_sentence_transformers.json").write_text(text)
    (place / "sentence_bert_config.json").write_text('{"max_seq_length": 60}')
    return place


def colbert(base, place, metadata=None):
    """A folder as ColBERT itself writes it."""
    shutil.copytree(base, place)
    tensors = {f"bert.{name}": one for name, one in load_file(base / "model.safetensors").items()}
    torch.manual_seed(3)
    tensors["linear.weight"] = torch.randn(WIDTH, 32) / 5
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    config = json.loads((base / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (place / "config.json").write_text(json.dumps(config))
    if metadata is not None:
        (place / "artifact.metadata").write_text(json.dumps(metadata))
    return place


PUNCTUATION = list(string.punctuation)
FOLDERS = {
    "native": lambda base, place: native(
        base,
        place,
        PUNCTUATION,
        document_length=25,
        query_expansion={"strategy": "fixed", "length": 16},
    ),
    "attending": lambda base, place: native(
        base,
        place,
        ["a"],
        query_expansion={"strategy": "min", "length": 9, "attend": True},
        query_length=18,
    ),
    "no expansion": lambda base, place: native(base, place, query_length=11),
    "pylate": pylate,
    "pylate attending": lambda base, place: pylate(
        base,
        place,
        attend_to_expansion_tokens=True,
        skiplist_words=["the", "and"],
        query_prefix="[Q] ",
        prompts={"query": "[Q] find ", "document": "in: "},
    ),
    "pylate without": lambda base, place: pylate(base, place, do_query_expansion=False),
    "colbert": lambda base, place: colbert(base, place),
    "colbert told": lambda base, place: colbert(
        base,
        place,
        {
            "query_maxlen": 12,
            "doc_maxlen": 22,
            "attend_to_mask_tokens": True,
            "mask_punctuation": False,
            "query_token_id": "[unused2]",
        },
    ),
}


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request, root, base):
    return FOLDERS[request.param](base, root / request.param)


def vectors(*argv):
    return [np.array(row["vectors"], np.float32) for row in good(*EMBED, *argv).rows]


def close(ours, right):
    assert [one.shape for one in ours] == [tuple(one.shape) for one in right]
    for one, other in zip(ours, right, strict=True):
        assert np.abs(one - np.asarray(other)).max() <= 1e-5


def test_vectors_are_those_of_sentence_transformers(folder):
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    close(vectors("-m", folder, *TEXTS), theirs.encode_document(TEXTS, convert_to_numpy=True))
    asked = vectors("-m", folder, "--prompt-name", "query", *TEXTS)
    close(asked, theirs.encode_query(TEXTS, convert_to_numpy=True))


def test_a_vector_depends_on_its_text_alone(folder):
    for role in ("query", "document"):
        given = ("-m", folder, "--prompt-name", role)
        together = good(*EMBED, *given, *TEXTS).rows
        alone = [good(*EMBED, *given, text).rows[0] for text in TEXTS[:3]]
        assert [row["vectors"] for row in together[:3]] == [row["vectors"] for row in alone]


def test_tokens_say_whose_vectors_there_are(root, base):
    folder = pylate(base, root / "tokens")
    (row,) = good(*EMBED, "-m", folder, "Is it?").rows
    assert row["tokens"] == ["[CLS]", "[unused1]", *row["tokens"][2:-1], "[SEP]"]
    assert "?" not in row["tokens"] and row["n_tokens"] == len(row["tokens"]) + 1
    (row,) = good(*EMBED, "-m", folder, "Is it?", "--prompt-name", "query").rows
    assert len(row["tokens"]) == len(row["vectors"]) == row["n_tokens"] == 20
    assert "?" in row["tokens"] and row["tokens"][-1] == "[MASK]"


def test_what_does_not_fit(root, base):
    folder = pylate(base, root / "refused")
    assert "window" in bad(*EMBED, "-m", folder, "a", "--on-truncate", "window", code=2).error
    assert "--token-vectors" in bad("embed", "-m", folder, "a").hint
    argv = (*EMBED, "-m", folder, "a", "--backend", "openvino")
    assert "expansion" in bad(*argv, code=2).error
