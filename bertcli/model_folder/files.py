"""Which files of a model folder are used, and for what: one rule for everybody, without torch.

    weights = find_weights(Path("bert-base-uncased"))
    weights.format, [path.name for path in weights.files]   # ("safetensors", ["model.safetensors"])

Loading, `inspect`, `inspect --verify`, the fingerprints of manifests and downloads from a hub all
ask here, so that they cannot mean different files. The rule is that of transformers
(modeling_utils._get_resolved_checkpoint_files): the first of WEIGHTS that is a file; then, as
transformers did before 5.0, a TensorFlow checkpoint. A name that is there but is not a file (a
directory, a pipe, a broken link) does not count; where nothing else is left, it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from glob import escape
from os.path import isfile  # unlike Path.is_file, false where looking is not allowed
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bertcli.errors import ModelError
from bertcli.formats.safetensors import read_header
from bertcli.io.paths import sha256
from bertcli.io.typed_json import (
    AGAIN,
    TEXT,
    Check,
    is_regular,
    is_text,
    read_object,
    read_objects,
)
from bertcli.models.config import BertConfig

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
    lambda value: isinstance(value, list) and all(map(_inside, value)),
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


def find_config(folder: Path) -> Path | None:
    """Return config.json, or bert_config.json as Google calls it. ModelError for a broken link."""
    path = next((folder / name for name in CONFIGS if is_regular(folder / name)), None)
    if path is not None:
        refuse_placeholder(path)
    return path


def read_config(folder: Path) -> BertConfig:
    """Read the config of the BERT in a folder: config.json, or Google's bert_config.json."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: folder not found")
    if is_static(folder):
        raise ModelError(
            f"{folder}: a table of token vectors without an encoder, which this needs",
            "bertcli embed, similar, duplicates and inspect take such a model",
        )
    folder = bert_folder(folder)
    refuse_adapter(folder)
    path = find_config(folder)
    if path is None:
        names = ", ".join(sorted(os.listdir(folder))[:8]) or "nothing"
        raise ModelError(f"{folder}: no config.json in this folder", f"in this folder: {names}")
    return BertConfig.from_dict(read_object(path), str(path))


def best_weights(has: Callable[[str], bool]) -> str | None:
    """Return the first of WEIGHTS that there is: the only one that counts."""
    return next(filter(has, WEIGHTS), None)


def find_weights(folder: Path) -> WeightFiles:
    """Return the weights that a folder is loaded from, format "none" without any.

    ModelError for a broken index, several TensorFlow checkpoints, or files that are not files.
    Shards that an index names need not be there: reading them says so.
    """
    name = best_weights(lambda name: isfile(folder / name))
    if name is not None:
        kind = "safetensors" if "safetensors" in name else "pytorch"
        if not name.endswith(".index.json"):
            return WeightFiles(kind, (folder / name,))
        shards = weight_map(folder / name)
        files = tuple(folder / shard for shard in sorted(set(shards.values())))
        return WeightFiles(kind, files, folder / name, shards)
    indexes = sorted(folder.glob(TENSORFLOW))
    checkpoints = [path for path in indexes if isfile(path)]
    if len(checkpoints) > 1:
        names = ", ".join(path.stem for path in checkpoints)
        raise ModelError(f"{folder}: several checkpoints: {names}", "keep one in the folder")
    if checkpoints:
        data = sorted(folder.glob(f"{escape(checkpoints[0].stem)}.data-*-of-*"))
        return WeightFiles("tensorflow", (checkpoints[0], *data))
    if graph := next((folder / name for name in GRAPH_NAMES if isfile(folder / name)), None):
        return WeightFiles("openvino", (graph, graph.with_suffix(".bin")))
    for path in (*(folder / name for name in WEIGHTS), *indexes):
        is_regular(path, hint=AGAIN)
    return WeightFiles("none")


def require_weights(folder: Path) -> WeightFiles:
    """Return the weights of a folder; ModelError when there are none."""
    weights = find_weights(folder)
    if weights.format != "none":
        return weights
    needed = ", ".join(WEIGHTS)
    raise ModelError(f"{folder}: no weights in this folder", f"one of {needed} is needed")


def weight_map(index: Path) -> dict[str, str]:
    """Return tensor name -> file name of an index of weights; ModelError when it is not one."""
    suffix = Path(index.name.removesuffix(".index.json")).suffix

    def is_shard(name: Any) -> bool:
        beside = is_text(name) and "\0" not in name and Path(name).name == name
        return beside and name.endswith(suffix)

    content = read_object(index)
    shards = content.object("weight_map")
    if not shards:
        raise content.bad("weight_map", "tensors and their files")
    shards.check_keys(is_text, "tensor names as keys")
    check = Check(is_shard, f"the name of a {suffix} file beside it")
    return {name: shards.needed(name, check) for name in shards}


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a folder's tokenizer, tokenizer.json or else vocab.txt first."""
    return [folder / name for name in TOKENIZER_PARTS if isfile(folder / name)]


def model_files(folder: Path) -> list[Path]:
    """Return the files that the model of a folder is read from, whatever lies beside them."""
    paths: set[Path] = set()
    for place in {folder, bert_folder(folder)}:
        paths.update(path for name in MODEL_FILES for path in place.glob(name))
        with suppress(ModelError):  # an index that is broken names no files
            paths.update(find_weights(place).all)
    return sorted(paths)


def refuse_adapter(folder: Path) -> None:
    """Raise ModelError for a folder with an adapter, without which its weights are another model.

    transformers adds it to its base model, whatever other weights are in the folder.
    """
    path = folder / ADAPTER
    if not isfile(path):
        return
    raw = read_object(path)
    adapter = raw.text("peft_type") or "PEFT"
    base = raw.text("base_model_name_or_path") or "another model"
    auto = f"AutoPeftModelFor{ADAPTED.get(raw.text('task_type') or '', 'FeatureExtraction')}"
    merge = f"{auto}.from_pretrained({str(folder)!r}).merge_and_unload().save_pretrained('merged')"
    raise ModelError(
        f"{folder}: an adapter ({adapter}) of {base}, not a whole model ({ADAPTER})",
        f'merge it: python -c "from peft import {auto}; {merge}", and copy its tokenizer there',
    )


def refuse_placeholder(path: Path) -> None:
    """Refuse what cannot be a file of weights, before anything tries to read it."""
    try:
        if not is_regular(path, hint=AGAIN):
            raise ModelError(f"{path}: file not found", AGAIN)
        with path.open("rb") as file:
            start = file.read(len(POINTER))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}", AGAIN) from error
    if not start:
        raise ModelError(f"{path}: the file is empty", AGAIN)
    if start == POINTER:
        raise ModelError(f"{path}: only a git-lfs pointer to the file", "run: git lfs pull")


# --- sentence-transformers ---


def read_modules(folder: Path) -> list[SentenceModule]:
    """Return the modules that modules.json lists, in their order; none without such a file."""
    inside = Check(_inside, "a path inside the model's folder")
    return [
        SentenceModule(_short(entry.needed("type", TEXT)), entry.needed("path", inside))
        for entry in read_objects(folder / MODULES)
    ]


def read_routes(folder: Path) -> dict[str, list[SentenceModule]]:
    """Return the modules for queries and documents, where a Router divides them; {} else."""
    modules = read_modules(folder)
    if not modules or modules[0].kind != "Router":
        return {}
    place = PurePosixPath(modules[0].path)
    raw = read_object(folder / place / ROUTER)
    structure, types = raw.object("structure"), raw.object("types")

    def module(name: str) -> SentenceModule:
        return SentenceModule(_short(types.needed(name, TEXT)), str(place / name))

    return {route: [module(name) for name in structure.needed(route, ROUTE)] for route in structure}


def transformer_path(modules: Sequence[SentenceModule]) -> str:
    """Return where the BERT lies, or a table of token vectors: "" for the folder itself."""
    return next((module.path for module in modules if module.kind in (*TRANSFORMERS, STATIC)), "")


def is_static(folder: Path) -> bool:
    """Tell whether a model is a table of token vectors, without an encoder."""
    modules = read_modules(folder)
    return modules[0].kind == STATIC if modules else is_model2vec(folder)


def is_model2vec(folder: Path) -> bool:
    """Return True for a folder that model2vec wrote, in whose ways its texts are read.

    Where config.json names no kind of model, as `StaticModel.save_pretrained` may leave it, the
    name of the table tells. Source: model2vec 0.10, persistence/datamodels.py.
    """
    path, weights = folder / CONFIGS[0], folder / WEIGHTS[0]
    try:
        raw = read_object(path)
        if not OF_ENCODERS.isdisjoint(raw):
            return raw.get("model_type") == "model2vec"
        if not (isfile(path) and isfile(weights)):
            return False
        return any(tensor.name == MODEL2VEC_TABLE for tensor in read_header(weights))
    except ModelError:  # raised again by the function that needs the file
        return False


def bert_folder(folder: Path) -> Path:
    """Return the folder with the BERT of a model: a part of it, such as 0_Transformer, or it."""
    if not is_text(str(folder)):
        raise ModelError(f"{folder}: the path is not UTF-8: {UTF8_ONLY}", "rename the folder")
    modules = read_modules(folder)
    if modules and modules[0].kind == "Router":
        modules = read_routes(folder).get("document") or modules
    first = modules[0].kind if modules else ""
    if first in OTHER_MODELS and not any(module.kind in TRANSFORMERS for module in modules):
        kinds = ", ".join(module.kind for module in modules)
        raise ModelError(
            f"{folder / MODULES}: unsupported module {first} (of {kinds})",
            f"choose a model whose modules begin with Transformer or {STATIC}",
        )
    return folder / transformer_path(modules)


def _inside(place: Any) -> bool:
    """Tell whether a path is one that stays in the model's folder."""
    if not is_text(place) or "\0" in place or ":" in place:
        return False
    parts = PurePosixPath(place.replace("\\", "/"))
    return not parts.is_absolute() and ".." not in parts.parts


def _short(kind: str) -> str:
    """Return the class alone: `sentence_transformers.models.Pooling` has moved since version 6."""
    return kind.rsplit(".", 1)[-1] if kind.startswith("sentence_transformers.") else kind
