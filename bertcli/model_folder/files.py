"""The names of the files of models, and which of them are needed. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bertcli.errors import ModelError
from bertcli.io.paths import sha256
from bertcli.io.typed_json import (
    AGAIN,
    Check,
    JsonObject,
    is_regular,
    is_text,
)

TOKENIZERS = (  # best first: the words, in one format or another
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
)
MERGES = "merges.txt"  # beside vocab.json
CONFIGS = ("config.json", "bert_config.json")
WEIGHTS = (  # best first; an index names its shards
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
GRAPHS = {  # of OpenVINO, made by `export` or others: they count where there are no weights
    "float32": "openvino/openvino_model.xml",
    "int8": "openvino/openvino_model_qint8_quantized.xml",
}
# As optimum-intel writes it, whatever its number format. The first that there is counts.
GRAPH_NAMES = (*GRAPHS.values(), "openvino_model.xml")
SHARDS = {  # index -> what transformers calls the files that it names
    "model.safetensors.index.json": "model-*-of-*.safetensors",
    "pytorch_model.bin.index.json": "pytorch_model-*-of-*.bin",
}
TENSORFLOW = "*.ckpt*.index"  # Google's own checkpoints; they count where there is nothing better
TENSORFLOW_DATA = "*.ckpt*.data-*-of-*"
MODULES = "modules.json"  # of sentence-transformers: which modules a text passes through
TERM_TABLE = "SparseStaticEmbedding"  # a module that is a weight for each token
STATIC = "StaticEmbedding"  # a module that is a table of token vectors
ADAPTER = "adapter_config.json"  # of PEFT: changes to the weights of another model
ADAPTED = {  # task_type of an adapter -> what PEFT calls the class of its model, with its head
    "SEQ_CLS": "SequenceClassification",
    "TOKEN_CLS": "TokenClassification",
    "QUESTION_ANS": "QuestionAnswering",
}
MODEL2VEC_TABLE = "embeddings"  # the tensor that it has in folders of model2vec
OF_ENCODERS = frozenset({"model_type", "architectures", "hidden_size"})  # keys of config.json
ROUTER = "router_config.json"
ROUTED = "[a-z]*_[0-9]*_*"  # how the folders of a Router's modules are called
PART = "[0-9]*_*"  # how the folders of modules are called: 0_Transformer, 1_Pooling
SENTENCE_CONFIGS = tuple(  # what sentence-transformers was told of a model, by its class
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

UTF8_ONLY = "safetensors, tokenizers and torch open no other"
TOKENIZER_PARTS = (  # a tokenizer is made of them
    *TOKENIZERS,
    MERGES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# And what limits its sequences.
TOKENIZER_FILES: tuple[str, ...] = (*TOKENIZER_PARTS, *CONFIGS, *SENTENCE_CONFIGS)
MODEL_FILES: tuple[str, ...] = (
    *TOKENIZER_FILES,
    MODULES,
    "config_sentence_transformers.json",
    f"{PART}/config.json",
    f"{PART}/model.safetensors",  # of a Dense layer
    f"{PART}/pytorch_model.bin",
    ROUTER,  # of queries and documents that go through other modules
    f"{ROUTED}/*.json",
    f"{ROUTED}/*.txt",
    f"{ROUTED}/model.safetensors",
    f"{ROUTED}/pytorch_model.bin",
    "idf.json",  # weights of the terms of queries
    "sparse_linear.pt",  # of BGE-M3
    "colbert_linear.pt",
    "artifact.metadata",  # of ColBERT
    *WEIGHTS,
    *SHARDS.values(),
    TENSORFLOW,
    TENSORFLOW_DATA,
)
OTHER_MODELS = (  # modules of sentence-transformers that take texts, and that bertcli does not have
    *("Asym", "BoW", "CLIPModel", "Router", "SparseStaticEmbedding", "WordEmbeddings"),
    *("CNN", "LSTM", "WordWeights"),
)
TRANSFORMERS = ("Transformer", "MLMTransformer")  # modules that a network is in
POINTER = b"version https://git-lfs"
ROUTE = Check(
    lambda value: isinstance(value, list) and all(map(stays_inside, value)),
    "a list of paths inside the model's folder",
)


class WeightFiles(NamedTuple):
    """The files that hold the weights of a folder."""

    format: str  # safetensors, pytorch, tensorflow, openvino (a graph) or none
    files: tuple[Path, ...] = ()  # with the tensors; the index of TensorFlow is one of them
    index_file: Path | None = None  # that names the files
    shards: Mapping[str, str] = {}

    @property
    def all(self) -> tuple[Path, ...]:
        """The files, and their index before them: what a fingerprint is made of."""
        return (*([self.index_file] if self.index_file else ()), *self.files)

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of all of them, by name."""
        return {path.name: sha256(path) for path in self.all}


class SentenceModule(NamedTuple):
    """One entry of modules.json: what it is, and where its files are."""

    kind: str  # Transformer, Pooling, ...; a module of others has its full name
    path: str  # seen from the folder; "" is the folder itself


def files_for(dtype: str) -> tuple[str, ...]:
    """Return the files of a model that is run in this number format, with its graph in 8 bits."""
    graph = (GRAPHS["int8"].replace(".xml", ".*"),) if dtype == "int8" else ()
    return (*MODEL_FILES, *graph)


def best_weights(has: Callable[[str], bool]) -> str | None:
    """Return the first of WEIGHTS that there is: the only one that counts."""
    return next(filter(has, WEIGHTS), None)


def weight_map(index: JsonObject, path: Path) -> dict[str, str]:
    """Return tensor name -> file name of an index of weights. ModelError for any other file."""
    suffix = Path(path.name.removesuffix(".index.json")).suffix

    def is_shard(name: Any) -> bool:
        beside = is_text(name) and "\0" not in name and Path(name).name == name
        return beside and name.endswith(suffix)

    shards = index.object("weight_map")
    if not shards:
        raise index.bad("weight_map", "tensors and their files")
    shards.check_keys(is_text, "tensor names as keys")
    check = Check(is_shard, f"the name of a {suffix} file beside it")
    return {name: shards.needed(name, check) for name in shards}


def refuse_placeholder(path: Path, content: bytes | None = None) -> None:
    """Raise ModelError for an empty file, or the pointer that git-lfs leaves instead of a file.

    ``content`` is that of the file, or its beginning, where it was read already.
    """
    if content is None:
        try:
            if not is_regular(path, hint=AGAIN):
                raise ModelError(f"{path}: file not found", AGAIN)
            with path.open("rb") as file:
                content = file.read(len(POINTER))
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror}", AGAIN) from error
    if not content:
        raise ModelError(f"{path}: the file is empty", AGAIN)
    if content.startswith(POINTER):
        raise ModelError(f"{path}: only a git-lfs pointer to the file", "run: git lfs pull")


# --- sentence-transformers ---


def transformer_path(modules: Sequence[SentenceModule]) -> str:
    """Return the path of the network, or of a table of token vectors; "" is the folder itself."""
    return next((module.path for module in modules if module.kind in (*TRANSFORMERS, STATIC)), "")


def stays_inside(place: Any) -> bool:
    """Return True for a path that stays inside the model's folder."""
    if not is_text(place) or "\0" in place or ":" in place:
        return False
    parts = PurePosixPath(place.replace("\\", "/"))
    return not parts.is_absolute() and ".." not in parts.parts


def short_class(kind: str) -> str:
    """Return the class alone: `sentence_transformers.models.Pooling` has moved since version 6."""
    return kind.rsplit(".", 1)[-1] if kind.startswith("sentence_transformers.") else kind
