"""EmbeddingGemma and EuroBERT as sentence models, with tokenizers of their kinds."""

import numpy as np
import pytest
import torch
import transformers
from front import good
from model_reference import randomise
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from task_models import SIZES
from tokenizers_made import MADE

from bertcli import Tokenizer

PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
TEXTS = ["I love NLP!", "no", "The capital of France is Paris, 1234 times.", "ünïcode 🤖 𓀀  text"]
LONG = "The capital of France is Paris and that of Italy is Rome. " * 3


def gemma(folder):
    """Write a small EmbeddingGemma: mean pooling, two Dense modules, unit length, prompts."""
    sizes = {key: SIZES[key] for key in ("hidden_size", "intermediate_size")}
    MADE["gemma"](folder, model_max_length=128)
    config = transformers.Gemma3TextConfig(
        **sizes,
        vocab_size=len(transformers.AutoTokenizer.from_pretrained(folder)),
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=8,
        sliding_window_pattern=3,
        max_position_embeddings=128,
        use_bidirectional_attention=True,
    )
    randomise(transformers.Gemma3TextModel(config)).save_pretrained(folder)
    identity = {"bias": False, "activation_function": torch.nn.Identity()}
    dense = [st.Dense(32, 48, **identity), st.Dense(48, 24, **identity)]
    for module in dense:
        randomise(module)
    return [st.Transformer(str(folder)), st.Pooling(32, "mean"), *dense, st.Normalize()], PROMPTS


def eurobert(folder):
    """Write a small sentence model of EuroBERT with the pooling of jina-embeddings-v5-text-nano."""
    MADE["eurobert"](folder, model_max_length=128)
    config = transformers.EuroBertConfig(
        **(SIZES | {"max_position_embeddings": 128}),
        num_key_value_heads=2,
        pad_token_id=703,
    )
    randomise(transformers.EuroBertModel(config)).save_pretrained(folder)
    transformer = st.Transformer(str(folder))
    return [transformer, st.Pooling(32, "lasttoken"), st.Normalize()], {"document": "Document: "}


@pytest.mark.parametrize("family", [gemma, eurobert], ids=lambda made: made.__name__)
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_vectors_are_those_of_sentence_transformers(tmp_path, family, backend):
    if backend == "openvino":
        pytest.importorskip("openvino")
    modules, prompts = family(tmp_path / "encoder")
    model = SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    folder = tmp_path / "model"
    model.save(str(folder))
    texts = [*TEXTS, LONG]
    for name in (None, *prompts):
        options = () if name is None else ("--prompt-name", name)

        def vectors(*given, options=options):
            rows = good("embed", "-q", "-m", folder, "--backend", backend, *options, *given).rows
            return np.array([row["embedding"] for row in rows], np.float32)

        here = vectors(*texts)
        right = np.concatenate([model.encode([one], prompt_name=name) for one in texts])
        np.testing.assert_allclose(here, right, atol=1e-5)
        alone = np.concatenate([vectors(text) for text in texts])
        np.testing.assert_allclose(alone, here, atol=1e-5 if backend == "torch" else 0)


@pytest.mark.parametrize("family", [gemma, eurobert], ids=lambda made: made.__name__)
def test_tokens_are_those_of_transformers(tmp_path, family):
    family(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    for text in (*TEXTS, LONG, "", "  two  blanks ", "line\nend\t tab"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
        assert ours.decode(ours(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])
