"""Small models that return several rows per text: sparse and late-interaction models."""

import shutil

import torch
import transformers
from front import (
    TINY,
    json_in,
    put_json,
)
from model_reference import randomise
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Router, Transformer
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

WIDTH = 12  # size of token vectors


def encoder(place):
    """Write the encoder for late-interaction models."""
    torch.manual_seed(0)
    config = transformers.BertConfig.from_pretrained(TINY)
    return _with_words(transformers.BertModel(config, add_pooling_layer=False), place)


def deberta(place):
    """Write an encoder that zeroes the states of masked tokens and has a convolution."""
    sizes = transformers.BertConfig.from_pretrained(TINY).to_dict()
    names = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
    config = transformers.DebertaV2Config(
        **{name: sizes[name] for name in names},
        num_hidden_layers=2,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=4,
        conv_kernel_size=3,
        conv_act="gelu",
    )
    return _with_words(transformers.DebertaV2Model(config), place)


def _with_words(model, place):
    randomise(model.eval())
    model.save_pretrained(place)
    transformers.AutoTokenizer.from_pretrained(TINY).save_pretrained(place)
    return place


def sparse(place):
    """Write a masked language model that returns few terms per text, like trained ones."""
    model = transformers.BertForMaskedLM(transformers.BertConfig.from_pretrained(TINY)).eval()
    randomise(model)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.mul_(5)
        model.cls.predictions.bias.sub_(8)
    model.save_pretrained(place)
    transformers.AutoTokenizer.from_pretrained(TINY).save_pretrained(place)
    return place


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
    """Write a folder in the format of PyLate."""
    shutil.copytree(base, place)
    dense = place / "1_Dense"
    dense.mkdir()
    torch.manual_seed(2)
    save_file({"linear.weight": torch.randn(WIDTH, 32) / 5}, dense / "model.safetensors")
    config = {"in_features": 32, "out_features": WIDTH, "bias": False}
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    put_json(dense / "config.json", config)
    kinds = ["sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"]
    modules = [
        {"idx": at, "name": str(at), "path": "1_Dense" * at, "type": kind}
        for at, kind in enumerate(kinds)
    ]
    put_json(place / "modules.json", modules)
    told = {"model_type": "ColBERT", "query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    told |= {"query_length": 20, "document_length": 30} | settings
    written = {name: value for name, value in told.items() if (name, value) != ("model_type", None)}
    put_json(place / "config_sentence_transformers.json", written)
    (place / "sentence_bert_config.json").write_text('{"max_seq_length": 60}')
    return place


def colbert(base, place, metadata=None):
    """Write a folder in the format of ColBERT."""
    shutil.copytree(base, place)
    tensors = {f"bert.{name}": one for name, one in load_file(base / "model.safetensors").items()}
    torch.manual_seed(3)
    tensors["linear.weight"] = torch.randn(WIDTH, 32) / 5
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    config = json_in(base / "config.json") | {"architectures": ["HF_ColBERT"]}
    put_json(place / "config.json", config)
    if metadata is not None:
        put_json(place / "artifact.metadata", metadata)
    return place


def bge(base, place):
    """Write a folder like BGE-M3's: dense vectors, and layers for terms and token vectors."""
    shutil.copytree(base, place)
    torch.manual_seed(4)
    torch.save(torch.nn.Linear(32, 1).state_dict(), place / "sparse_linear.pt")
    torch.save(torch.nn.Linear(32, 32).state_dict(), place / "colbert_linear.pt")
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{kind}" * bool(at)}
        | {"type": f"sentence_transformers.models.{kind}"}
        for at, kind in enumerate(kinds)
    ]
    put_json(place / "modules.json", modules)
    (place / "1_Pooling").mkdir()
    pooled = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    put_json(place / "1_Pooling" / "config.json", pooled)
    return place


def routed(masked, place):
    """Write a SparseEncoder whose queries use a table of weights; return each token's weight."""
    tokens = transformers.AutoTokenizer.from_pretrained(masked)
    weights = torch.rand(len(tokens), generator=torch.Generator().manual_seed(5)) * 3
    weights[::7] = 0
    documents = [Transformer(str(masked), transformer_task="fill-mask"), SpladePooling("max")]
    queries = [SparseStaticEmbedding(tokenizer=tokens, weight=weights)]
    router = Router.for_query_document(query_modules=queries, document_modules=documents)
    SparseEncoder(modules=[router], device="cpu").save(str(place))
    return {token: float(weights[index]) for token, index in tokens.get_vocab().items()}
