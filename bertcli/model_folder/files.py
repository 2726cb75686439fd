"""The file names of models, and which of them are needed. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bertcli.errors import ModelError
from bertcli.io.paths import sha256
from bertcli.io.typed_json import (
    DOWNLOAD_AGAIN,
    Check,
    JsonObject,
    is_regular,
    is_text,
)

VOCABULARIES = (  # the vocabulary in several formats, in order of preference
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
)
MERGES = "merges.txt"  # accompanies vocab.json
CONFIGS = ("config.json", "bert_config.json")
WEIGHTS = (  # in order of preference; an index lists its shards
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
GRAPHS = {  # of OpenVINO, written by `export` or other tools; used if there are no weights
    "float32": "openvino/openvino_model.xml",
    "int8": "openvino/openvino_model_qint8_quantized.xml",
}
# Of ONNX, in order of preference: as Xenova, optimum, fastembed and `export --to onnx` name them.
ONNX_NAMES = tuple(
    f"{folder}{name}.onnx"
    for name in ("model", "model_optimized", "model_quantized")
    for folder in ("onnx/", "")
)
ONNX_DATA = ("_data", ".data")  # name of a file with the weights of a graph, after the graph's
# openvino_model.xml is optimum-intel's, for any number format. The first existing file is used.
GRAPH_NAMES = (*GRAPHS.values(), "openvino_model.xml", *ONNX_NAMES)
GRAPH_FORMATS = ("openvino", "onnx")
SHARDS = {  # index -> pattern of the shard names that transformers writes
    "model.safetensors.index.json": "model-*-of-*.safetensors",
    "pytorch_model.bin.index.json": "pytorch_model-*-of-*.bin",
}
TENSORFLOW = "*.ckpt*.index"  # Google's checkpoints; used if there is nothing better
TENSORFLOW_DATA = "*.ckpt*.data-*-of-*"
MODULES = "modules.json"  # of sentence-transformers: the modules that process a text
TERM_TABLE = "SparseStaticEmbedding"  # a module with one weight per token
STATIC = "StaticEmbedding"  # a module with one vector per token
ADAPTER = "adapter_config.json"  # of PEFT: changes to the weights of another model
PEFT_CLASSES = {  # task_type of an adapter -> what PEFT's class name ends with
    "SEQ_CLS": "SequenceClassification",
    "TOKEN_CLS": "TokenClassification",
    "QUESTION_ANS": "QuestionAnswering",
}
MODEL2VEC_TABLE = "embeddings"  # name of the tensor in folders of model2vec
ENCODER_KEYS = frozenset({"model_type", "architectures", "hidden_size"})  # in config.json
ROUTER = "router_config.json"
ROUTER_FOLDERS = "[a-z]*_[0-9]*_*"  # folder names of a Router's modules
MODULE_FOLDERS = "[0-9]*_*"  # folder names of modules: 0_Transformer, 1_Pooling
SENTENCE_CONFIGS = tuple(  # settings of sentence-transformers, by model class
    f"sentence_{model_type}_config.json"
    for model_type in (
        "bert",
        "roberta",
        "distilbert",
        "camembert",
        "albert",
        "xlm-roberta",
        "xlnet",
    )
)

UTF8_ONLY = "safetensors, tokenizers and torch open no other"
TOKENIZER_ONLY = (  # the files of a tokenizer alone
    *VOCABULARIES,
    MERGES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# The tokenizer files and the files that limit its sequence length.
TOKENIZER_FILES: tuple[str, ...] = (*TOKENIZER_ONLY, *CONFIGS, *SENTENCE_CONFIGS)
MODEL_FILES: tuple[str, ...] = (
    *TOKENIZER_FILES,
    MODULES,
    "config_sentence_transformers.json",
    f"{MODULE_FOLDERS}/config.json",
    f"{MODULE_FOLDERS}/model.safetensors",  # of a Dense layer
    f"{MODULE_FOLDERS}/pytorch_model.bin",
    ROUTER,  # separate modules for queries and documents
    f"{ROUTER_FOLDERS}/*.json",
    f"{ROUTER_FOLDERS}/*.txt",
    f"{ROUTER_FOLDERS}/model.safetensors",
    f"{ROUTER_FOLDERS}/pytorch_model.bin",
    "idf.json",  # weights of query terms
    "sparse_linear.pt",  # of BGE-M3
    "colbert_linear.pt",
    "artifact.metadata",  # of ColBERT
    *WEIGHTS,
    *SHARDS.values(),
    TENSORFLOW,
    TENSORFLOW_DATA,
)
UNSUPPORTED_MODULES = (  # sentence-transformers modules that take texts and are not supported
    *("Asym", "BoW", "CLIPModel", "Router", "SparseStaticEmbedding", "WordEmbeddings"),
    *("CNN", "LSTM", "WordWeights"),
)
TRANSFORMER_MODULES = ("Transformer", "MLMTransformer")  # modules that contain a network
LFS_POINTER = b"version https://git-lfs"
INSIDE = Check(lambda path: stays_inside(path), "a path inside the model's folder")
ALL_INSIDE = Check(
    lambda paths: isinstance(paths, list) and all(map(stays_inside, paths)),
    "a list of paths inside the model's folder",
)


class WeightFiles(NamedTuple):
    """The files that hold the weights of a folder."""

    format: str  # safetensors, pytorch, tensorflow, openvino or onnx (a graph), or none
    files: tuple[Path, ...] = ()  # with the tensors; includes the index of TensorFlow
    index_file: Path | None = None  # file that lists the shards
    shards: Mapping[str, str] = {}  # tensor -> name of its file, if there is an index

    @property
    def all_files(self) -> tuple[Path, ...]:
        """The index, if any, and the files with tensors."""
        if self.index_file is None:
            return self.files
        return (self.index_file, *self.files)

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each file, by name."""
        return {path.name: sha256(path) for path in self.all_files}


class SentenceModule(NamedTuple):
    """One entry of modules.json: its class and the location of its files."""

    class_name: str  # Transformer, Pooling, ...; a third-party module has its full name
    path: str  # relative to the model folder; "" is the folder itself


def files_for(dtype: str) -> tuple[str, ...]:
    """Return the names and patterns of the files that run a model in this number format."""
    if dtype != "int8":
        return MODEL_FILES
    return (*MODEL_FILES, GRAPHS["int8"].replace(".xml", ".*"))


def graph_companions(name: str) -> tuple[str, ...]:
    """Return the names that the file with a graph's weights may have; ONNX may have none."""
    if name.endswith(".xml"):
        return (name.removesuffix(".xml") + ".bin",)
    return tuple(name + suffix for suffix in ONNX_DATA)


def graph_files(graph: Path) -> WeightFiles:
    """Return the files of a graph of OpenVINO, whose second may be missing, or of ONNX."""
    companions = [Path(name) for name in graph_companions(str(graph))]
    if graph.suffix == ".xml":
        return WeightFiles("openvino", (graph, *companions))
    return WeightFiles("onnx", (graph, *(path for path in companions if path.is_file())))


def best_weights(exists: Callable[[str], bool]) -> str | None:
    """Return the first name in WEIGHTS that exists. The others are not used."""
    return next(filter(exists, WEIGHTS), None)


def weight_map(index: JsonObject, path: Path) -> dict[str, str]:
    """Return the tensor name -> file name map of a weight index.

    Raises ModelError if it is invalid.
    """
    suffix = Path(path.name.removesuffix(".index.json")).suffix

    def is_shard(name: Any) -> bool:
        is_file_name = is_text(name) and "\0" not in name and Path(name).name == name
        return is_file_name and name.endswith(suffix)

    shards = index.object("weight_map")
    if not shards:
        raise index.bad("weight_map", "tensors and their files")
    shards.check_keys(is_text, "tensor names as keys")
    check = Check(is_shard, f"the name of a {suffix} file beside it")
    return {name: shards.needed(name, check) for name in shards}


def refuse_placeholder(path: Path, content: bytes | None = None) -> None:
    """Raise ModelError for an empty file, or for a git-lfs pointer in place of a file.

    ``content`` is the content of the file, or its start, if it has been read already.
    """
    if content is None:
        try:
            if not is_regular(path, hint=DOWNLOAD_AGAIN):
                raise ModelError(f"{path}: file not found", DOWNLOAD_AGAIN)
            with path.open("rb") as file:
                content = file.read(len(LFS_POINTER))
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror}", DOWNLOAD_AGAIN) from error
    if not content:
        raise ModelError(f"{path}: the file is empty", DOWNLOAD_AGAIN)
    if content.startswith(LFS_POINTER):
        raise ModelError(f"{path}: only a git-lfs pointer to the file", "run: git lfs pull")


# --- sentence-transformers ---


def transformer_path(modules: Sequence[SentenceModule]) -> str:
    """Return the path of the network, or of a static table; "" is the folder itself."""
    for module in modules:
        if module.class_name in (*TRANSFORMER_MODULES, STATIC):
            return module.path
    return ""


def stays_inside(value: Any) -> bool:
    """Return True for a path that stays inside the model's folder."""
    if not is_text(value) or "\0" in value or ":" in value:
        return False
    path = PurePosixPath(value.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts


def short_class_name(full_name: str) -> str:
    """Return a class name without its Python module, which sentence-transformers 6 changed.

    Names of third-party classes are returned unchanged.
    """
    if not full_name.startswith("sentence_transformers."):
        return full_name
    return full_name.rpartition(".")[2]
