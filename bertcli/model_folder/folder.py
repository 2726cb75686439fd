"""A model folder: its files, read lazily and at most once. Does not import torch.

    folder = ModelFolder.open("bert-base-uncased")
    folder.config.hidden_size               # 768
    folder.weights.format                   # "safetensors"
    [module.class_name for module in folder.modules]   # of a sentence model

A sentence model may keep its network in a subfolder, `folder.encoder`; for any other model, the
folder is its own encoder. Subfolders share the cache of files with their parent.

The weights are selected as in transformers (modeling_utils ._get_resolved_checkpoint_files): the
first of WEIGHTS that is a file; then, as in transformers before 5.0, a TensorFlow checkpoint; then
an OpenVINO graph. Names that are not files (a folder, a pipe, a broken link) are ignored, and
rejected if there is nothing else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from glob import escape
from os.path import isfile  # unlike Path.is_file, False without permission to look
from pathlib import Path, PurePosixPath

from bertcli.errors import ModelError
from bertcli.formats.safetensors import read_header
from bertcli.io.typed_json import (
    DOWNLOAD_AGAIN,
    NOTHING,
    TEXT,
    JsonObject,
    is_regular,
    is_text,
    parse_object,
    parse_objects,
    read_bytes,
)
from bertcli.model_folder.files import (
    ADAPTER,
    ALL_INSIDE,
    CONFIGS,
    ENCODER_KEYS,
    GRAPH_NAMES,
    INSIDE,
    MODEL2VEC_TABLE,
    MODEL_FILES,
    MODULES,
    PEFT_CLASSES,
    ROUTER,
    SENTENCE_CONFIGS,
    STATIC,
    TENSORFLOW,
    TOKENIZER_ONLY,
    TRANSFORMER_MODULES,
    UNSUPPORTED_MODULES,
    UTF8_ONLY,
    WEIGHTS,
    SentenceModule,
    WeightFiles,
    best_weights,
    graph_files,
    refuse_placeholder,
    short_class_name,
    transformer_path,
    weight_map,
)
from bertcli.models.config import BertConfig


class ModelFolder:
    """The folder of a model, with its source and its commit if known.

    Properties raise ModelError if the file that they read is broken. `str` returns the path.
    """

    def __init__(
        self,
        path: Path,
        name: str = "",
        source: str = "folder",
        revision: str | None = None,
        objects: dict[Path, JsonObject] | None = None,
    ) -> None:
        """``source`` is "folder", "installed package <module>", "cache" or "hub"."""
        self.path = path
        self.name = name or str(path)
        self.source = source
        self.revision = revision
        self._objects = {} if objects is None else objects  # cache of JSON files

    @classmethod
    def open(cls, path: ModelFolder | str | Path) -> ModelFolder:
        """Return the model folder with this path; a `ModelFolder` is returned unchanged."""
        return path if isinstance(path, ModelFolder) else cls(Path(path))

    def __str__(self) -> str:
        """Return the path, as it appears in messages."""
        return str(self.path)

    def __truediv__(self, name: str | Path) -> Path:
        """Return the path of a file in the folder."""
        return self.path / name

    def subfolder(self, path: str) -> ModelFolder:
        """Return the model folder at a path below this one, such as "0_Transformer".

        It shares the cache of JSON files. "" and "." return this folder itself.
        """
        if path in ("", "."):
            return self
        return ModelFolder(self.path / path, self.name, self.source, self.revision, self._objects)

    def has(self, name: str) -> bool:
        """Return True if the folder has a file of this name."""
        return isfile(self.path / name)

    def json_object(self, name: str) -> JsonObject:
        """Return the content of a JSON file that holds one object, read at its first use.

        Returns an empty object if there is no such file. Raises ModelError if the file is not
        valid JSON, holds no object, is empty, or is a git-lfs pointer.
        """
        path = self.path / name
        if path not in self._objects:
            content = read_bytes(path)
            if content is not None:
                refuse_placeholder(path, content)
            empty = JsonObject({}, str(path))
            self._objects[path] = empty if content is None else parse_object(content, path)
        return self._objects[path]

    # --- configs ---

    @cached_property
    def encoder(self) -> ModelFolder:
        """The folder with the network: a subfolder such as 0_Transformer, or this folder."""
        if not is_text(str(self.path)):
            raise ModelError(f"{self}: the path is not UTF-8: {UTF8_ONLY}", "rename the folder")
        modules = self.modules
        if modules and modules[0].class_name == "Router":
            modules = self.routes.get("document") or modules
        class_names = [module.class_name for module in modules]
        has_transformer = not set(TRANSFORMER_MODULES).isdisjoint(class_names)
        if modules and class_names[0] in UNSUPPORTED_MODULES and not has_transformer:
            raise ModelError(
                f"{self / MODULES}: unsupported module {class_names[0]} "
                f"(of {', '.join(class_names)})",
                f"choose a model whose modules begin with Transformer or {STATIC}",
            )
        return self.subfolder(transformer_path(modules))

    @cached_property
    def config_file(self) -> Path | None:
        """config.json, or Google's bert_config.json. Raises ModelError for a broken link."""
        return next((self / name for name in CONFIGS if is_regular(self / name)), None)

    @cached_property
    def raw_config(self) -> JsonObject:
        """The content of config.json, or of bert_config.json; empty without either."""
        return next(filter(None, map(self.json_object, CONFIGS)), NOTHING)

    @cached_property
    def config(self) -> BertConfig:
        """The config of the encoder."""
        if not self.path.is_dir():
            raise ModelError(f"{self}: folder not found")
        if self.is_static:
            raise ModelError(
                f"{self}: a table of token vectors without an encoder, which this needs",
                "bertcli embed, similar, duplicates and inspect take such a model",
            )
        if self.encoder is not self:
            return self.encoder.config
        self.refuse_adapter()
        path = self.config_file
        if path is None:
            listing = ", ".join(sorted(os.listdir(self.path))[:8]) or "nothing"
            raise ModelError(f"{self}: no config.json in this folder", f"in this folder: {listing}")
        return BertConfig.from_dict(self.json_object(path.name), str(path))

    def require_encoder(self) -> None:
        """Raise ModelError for a folder without an encoder, such as a table of token vectors."""
        self.config  # noqa: B018 - reads it

    @cached_property
    def is_static(self) -> bool:
        """True for a table of token vectors without an encoder."""
        if self.modules:
            return self.modules[0].class_name == STATIC
        return self.is_model2vec

    @cached_property
    def is_model2vec(self) -> bool:
        """True for a folder that model2vec wrote.

        `StaticModel.save_pretrained` may omit the model type; then the name of the table decides.
        Source: model2vec 0.10, persistence/datamodels.py.
        """
        weights = self / WEIGHTS[0]
        try:
            raw = self.json_object(CONFIGS[0])
            if not ENCODER_KEYS.isdisjoint(raw):
                return raw.get("model_type") == "model2vec"
            if not (self.has(CONFIGS[0]) and isfile(weights)):
                return False
            return any(tensor.name == MODEL2VEC_TABLE for tensor in read_header(weights))
        except ModelError:  # raised again where the file is needed
            return False

    def refuse_adapter(self) -> None:
        """Raise ModelError for a folder with a PEFT adapter, because it modifies another model.

        transformers applies the adapter to its base model, whatever other weights are in the
        folder.
        """
        if not self.has(ADAPTER):
            return
        raw = self.json_object(ADAPTER)
        adapter_type = raw.text("peft_type") or "PEFT"
        base_model = raw.text("base_model_name_or_path") or "another model"
        task = PEFT_CLASSES.get(raw.text("task_type") or "", "FeatureExtraction")
        peft_class = f"AutoPeftModelFor{task}"
        merge = (
            f"{peft_class}.from_pretrained({str(self)!r})"
            ".merge_and_unload().save_pretrained('merged')"
        )
        raise ModelError(
            f"{self}: an adapter ({adapter_type}) of {base_model}, not a whole model ({ADAPTER})",
            f'merge it: python -c "from peft import {peft_class}; {merge}", '
            "and copy its tokenizer there",
        )

    # --- weights and other files ---

    @cached_property
    def weights(self) -> WeightFiles:
        """The weight files of this folder; their format is "none" if there are none.

        Raises ModelError for a broken index, several TensorFlow checkpoints, or names that are not
        files. Shards listed in an index may be missing; reading them raises the error.
        """
        if name := best_weights(self.has):
            return self._torch_weights(name)
        indexes = sorted(self.path.glob(TENSORFLOW))
        checkpoints = [path for path in indexes if isfile(path)]
        if len(checkpoints) > 1:
            names = ", ".join(path.stem for path in checkpoints)
            raise ModelError(f"{self}: several checkpoints: {names}", "keep one in the folder")
        if checkpoints:
            (index,) = checkpoints
            data_files = sorted(self.path.glob(f"{escape(index.stem)}.data-*-of-*"))
            return WeightFiles("tensorflow", (index, *data_files))
        if graph := next(filter(self.has, GRAPH_NAMES), None):
            return graph_files(self / graph)
        for path in (*map(self.path.joinpath, WEIGHTS), *indexes):
            is_regular(path, hint=DOWNLOAD_AGAIN)  # raises for a name that is not a file
        return WeightFiles("none")

    def _torch_weights(self, name: str) -> WeightFiles:
        """Return the weight files of PyTorch or safetensors; `name` is the file or the index."""
        file_format = "safetensors" if "safetensors" in name else "pytorch"
        if not name.endswith(".index.json"):
            return WeightFiles(file_format, (self / name,))
        shards = weight_map(self.json_object(name), Path(name))
        files = tuple(self / shard for shard in sorted(set(shards.values())))
        return WeightFiles(file_format, files, self / name, shards)

    def require_weights(self) -> WeightFiles:
        """Return the weight files. Raises ModelError if there are none."""
        if self.weights.format != "none":
            return self.weights
        needed = ", ".join(WEIGHTS)
        raise ModelError(f"{self}: no weights in this folder", f"one of {needed} is needed")

    @property
    def tokenizer_files(self) -> list[Path]:
        """The files of this folder's tokenizer that exist, the vocabulary first."""
        return [self / name for name in TOKENIZER_ONLY if self.has(name)]

    @property
    def model_files(self) -> list[Path]:
        """The files that the model is read from."""
        paths: set[Path] = set()
        for folder in (self, self.encoder):
            paths.update(path for name in MODEL_FILES for path in folder.path.glob(name))
            with suppress(ModelError):  # a broken index lists no files
                paths.update(folder.weights.all_files)
        return sorted(paths)

    # --- the tokenizer ---

    @cached_property
    def tokenizer_settings(self) -> JsonObject:
        """The settings of special tokens, from two files.

        tokenizer_config.json takes precedence if it has added_tokens_decoder, otherwise
        special_tokens_map.json does.
        """
        config = self.json_object("tokenizer_config.json")
        special_tokens = self.json_object("special_tokens_map.json")
        if "added_tokens_decoder" in config:
            return config.over(special_tokens)
        return special_tokens.over(config)

    # --- sentence-transformers ---

    @cached_property
    def modules(self) -> list[SentenceModule]:
        """The modules of modules.json, in order; empty if there is no such file."""
        path = self / MODULES
        content = read_bytes(path)
        if content is None:
            return []
        modules = []
        for entry in parse_objects(content, path):
            class_name = short_class_name(entry.needed("type", TEXT))
            modules.append(SentenceModule(class_name, entry.needed("path", INSIDE)))
        return modules

    @cached_property
    def routes(self) -> dict[str, list[SentenceModule]]:
        """Route ("query", "document") -> its modules, in a model with a Router; {} without one."""
        modules = self.modules
        if not modules or modules[0].class_name != "Router":
            return {}
        router = PurePosixPath(modules[0].path)
        raw = self.json_object(str(router / ROUTER))
        structure = raw.object("structure")
        class_names = raw.object("types")
        routes = {}
        for route in structure:
            names = structure.needed(route, ALL_INSIDE)
            routes[route] = [
                SentenceModule(short_class_name(class_names.needed(name, TEXT)), str(router / name))
                for name in names
            ]
        return routes

    @property
    def sentence_settings(self) -> JsonObject:
        """The content of sentence_bert_config.json, or of its older names; empty without one."""
        return next(filter(None, map(self.json_object, SENTENCE_CONFIGS)), NOTHING)
