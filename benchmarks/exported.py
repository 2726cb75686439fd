"""The model in the formats of the peers, written once and kept beside the results."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def onnx_file(model: Path, work: Path) -> str:
    """Return a graph (ids, keep: int64 [B, L]) -> mean of the tokens [B, D], as ONNX."""
    path = work / "model.onnx"
    if not path.exists():
        apart(_export, model, path)
    return str(path)


def fused_file(model: Path, work: Path, *, quantized: bool) -> str:
    """Return the same with ONNX Runtime's own operators for attention, GELU and LayerNorm.

    Quantized it has int8 weights with a scale for each channel: with one scale for a whole matrix
    it is hardly faster, and the vectors are useless.
    """
    path, small = work / "model.fused.onnx", work / "model.fused.int8.onnx"
    if not path.exists():
        apart(_fuse, model, onnx_file(model, work), path)
    if quantized and not small.exists():
        apart(_quantize, path, small)
    return str(small if quantized else path)


def bertcli_folder(model: Path, work: Path, precision: str, accuracy: str = "high") -> Path:
    """Return the folder that bertcli runs in this precision: in 8 bits, one it exported."""
    if precision != "int8":
        return model
    folder = work / f"bertcli.int8.{accuracy}"
    if not folder.exists():
        apart(_eight_bits, model, folder, accuracy)
    return folder


def _eight_bits(model: Path, folder: Path, accuracy: Any) -> None:
    from bertcli.exporting.folder import ExportOptions, export
    from bertcli.model_folder.find import find_model

    export(find_model(str(model)), folder, ExportOptions(dtype="int8", accuracy=accuracy))


def apart(make: Callable[..., None], *arguments: Any) -> None:
    """Make a file in a process of its own, so that its memory is not the contestant's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(make, *arguments).result()


def _fuse(model: Path, graph: str, path: Path) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    config = json.loads((model / "config.json").read_text("utf-8"))
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    fused = optimize_model(graph, "bert", num_heads=heads, hidden_size=hidden, opt_level=0)
    fused.save_model_to_file(str(path))


def _quantize(path: Path, small: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    extra = {"DefaultTensorType": 1}  # float32, behind operators whose types ONNX does not know
    kind = QuantType.QInt8
    quantize_dynamic(path, small, weight_type=kind, per_channel=True, extra_options=extra)


def _pooled(model: Path) -> Any:
    import torch
    from transformers import AutoModel

    class Pooled(torch.nn.Module):
        """A BERT and the mean of its tokens."""

        def __init__(self, bert: Any) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
            states = self.bert(input_ids=ids, attention_mask=keep).last_hidden_state
            share = keep.to(states.dtype) / keep.sum(1, keepdim=True)
            return (states * share.unsqueeze(-1)).sum(1)

    return Pooled(AutoModel.from_pretrained(model, attn_implementation="eager").eval())


def _export(model: Path, path: Path) -> None:
    import torch

    ids = torch.randint(1000, 2000, (3, 17))
    sizes = {0: "batch", 1: "length"}
    torch.onnx.export(
        _pooled(model),
        (ids, torch.ones_like(ids)),
        str(path),
        dynamo=False,  # the fusions of fused_file know this exporter's graphs, not the new one's
        opset_version=17,
        input_names=["ids", "keep"],
        output_names=["vectors"],
        dynamic_axes={"ids": sizes, "keep": sizes},
    )


def openvino_file(model: Path, work: Path, *, quantized: bool) -> str:
    """Return a graph (ids, keep: int64 [B, L]) -> mean of the tokens [B, D], of OpenVINO.

    Quantized it is by NNCF's defaults for transformers, with the sample that bertcli takes.
    """
    path = work / ("openvino.int8.xml" if quantized else "openvino.xml")
    if not path.exists():
        apart(_openvino, model, path, quantized)
    return str(path)


def _openvino(model: Path, path: Path, quantized: bool) -> None:
    import numpy as np
    import torch
    from transformers import AutoTokenizer

    import bertcli
    from bertcli.engines.compute import import_nncf, import_openvino

    ids = torch.randint(1000, 2000, (3, 17))
    with torch.inference_mode():
        graph = import_openvino().convert_model(
            _pooled(model), example_input=(ids, torch.ones_like(ids))
        )
    if quantized:
        sample = Path(bertcli.__file__).with_name("exporting") / "calibration.txt"
        tokenizer, library = AutoTokenizer.from_pretrained(model), import_nncf()
        texts = [tokenizer(line)["input_ids"] for line in sample.read_text("utf-8").splitlines()]
        pairs = [[np.array([text]), np.ones((1, len(text)), np.int64)] for text in texts]
        kind = library.ModelType.TRANSFORMER
        graph = library.quantize(graph, library.Dataset(pairs), model_type=kind)
    import_openvino().save_model(graph, str(path), compress_to_fp16=False)


def ctranslate2_folder(model: Path, work: Path) -> Path:
    """Return the model as CTranslate2 has it; what it computes in is chosen when it is loaded."""
    folder = work / "ctranslate2"
    if not folder.exists():
        apart(_convert, model, folder)
    return folder


def _convert(model: Path, folder: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(model)).convert(str(folder))


def random_base(folder: Path, tokenizer: Path) -> None:
    """Write a BERT of the size of bert-base with random weights, mean pooling, limit 512."""
    import shutil

    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    bare = folder.with_name(f"{folder.name}.bare")
    BertModel(BertConfig(), add_pooling_layer=False).save_pretrained(bare)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, bare / name)
    transformer = Transformer(str(bare), max_seq_length=512)
    pooling = Pooling(transformer.get_word_embedding_dimension(), "mean")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder))
    shutil.rmtree(bare)


def random_null(folder: Path, tokenizer: Path) -> None:
    """Write a BERT of one layer of width 32 with random weights and this tokenizer."""
    import shutil

    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    given = json.loads((tokenizer / "config.json").read_text("utf-8"))
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    same = {name: given[name] for name in ("vocab_size", "max_position_embeddings")}
    BertModel(BertConfig(**same, **sizes, num_hidden_layers=1)).save_pretrained(folder)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
