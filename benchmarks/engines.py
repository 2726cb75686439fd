"""The loaders: how each contestant turns texts into vectors, each at its best.

All of them cut at the same limit, sort by length, pool the mean of the tokens, normalise, and give
vectors in the order of the texts; all of it counts. Peers are run with several batch sizes, and
keep the fastest (child.py). This module runs inside a contestant's own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from contestants import Contestant
from exported import bertcli_folder, ctranslate2_folder, fused_file, openvino_file

BUDGETS = (1024, 2048, 4096, 8192)  # tokens of a batch
ROWS = (16, 32, 64, 128)  # texts of a batch, where the peer counts those
ON_GPU = (128, 512, 2048)


@dataclass(frozen=True)
class Place:
    """What all contestants of a run share."""

    model: Path
    work: Path  # where exported models are kept
    max_length: int
    threads: int


@dataclass(frozen=True)
class Loaded:
    """A contestant that is ready: (texts, batch size) -> vectors [n, D]."""

    run: Callable[[Sequence[str], int], np.ndarray]
    sizes: tuple[int, ...] = (0,)  # the batch sizes to choose from


def bertcli(contestant: Contestant, place: Place) -> Loaded:
    from bertcli.embedding.embed_run import RecordVectors
    from bertcli.embedding.record_embedder import EmbedOptions, RecordEmbedder
    from bertcli.model_folder.find import find_model

    given: dict[str, Any] = {"dtype": contestant.precision, "device": contestant.device}
    given |= {"max_length": place.max_length, "threads": place.threads}
    options = dict(contestant.options)
    accuracy = options.pop("accuracy", "high")
    folder = bertcli_folder(place.model, place.work, contestant.precision, accuracy)
    embedder = RecordEmbedder.open(find_model(str(folder)), EmbedOptions(**given | options))

    def run(texts: Sequence[str], batch: int) -> np.ndarray:
        vectors = RecordVectors(embedder, texts)
        vectors.execute()
        return vectors.vectors

    return Loaded(run)


def sentence_transformers(contestant: Contestant, place: Place) -> Loaded:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(place.model),
        device=contestant.device,
        model_kwargs={"dtype": contestant.precision},
    )
    model.max_seq_length = place.max_length

    def run(texts: Sequence[str], batch: int) -> np.ndarray:
        return model.encode(list(texts), batch_size=batch, show_progress_bar=False)

    return Loaded(run, ROWS if contestant.device == "cpu" else ON_GPU)


def onnxruntime(contestant: Contestant, place: Place) -> Loaded:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = place.threads
    file = fused_file(place.model, place.work, quantized=contestant.precision == "int8")
    session = InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return batched(place, lambda ids, keep: session.run(None, {"ids": ids, "keep": keep})[0])


def openvino(contestant: Contestant, place: Place) -> Loaded:
    from openvino import Core

    core = Core()
    asked = {"float32": "f32", "int8": "f32", "bfloat16": "bf16"}[contestant.precision]
    settings = {"INFERENCE_PRECISION_HINT": asked, "INFERENCE_NUM_THREADS": place.threads}
    file = openvino_file(place.model, place.work, quantized=contestant.precision == "int8")
    compiled = core.compile_model(file, "CPU", settings | {"NUM_STREAMS": 1})
    got = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if got != asked:
        raise RuntimeError(f"OpenVINO computes in {got} here")
    request = compiled.create_infer_request()
    return batched(place, lambda ids, keep: request.infer([ids, keep])[0])


def ctranslate2(contestant: Contestant, place: Place) -> Loaded:
    from ctranslate2 import Encoder

    folder = ctranslate2_folder(place.model, place.work)
    encoder = Encoder(
        str(folder), compute_type=contestant.precision, intra_threads=place.threads, inter_threads=1
    )

    def infer(ids: np.ndarray, keep: np.ndarray) -> np.ndarray:
        rows = [row[:count].tolist() for row, count in zip(ids, keep.sum(1), strict=True)]
        states = np.array(encoder.forward_batch(rows).last_hidden_state)
        share = (keep / keep.sum(1, keepdims=True)).astype("float32")
        return (share[:, None] @ states)[:, 0]

    return batched(place, infer)


def products(contestant: Contestant, place: Place) -> Loaded:
    """Multiply matrices of the model's shapes, a good batch of tokens by the weights of a layer."""
    import torch
    from flops import Shape

    shape, device = Shape.read(place.model), torch.device(contestant.device)
    whole = contestant.precision == "int8"
    dtype = getattr(torch, contestant.precision)
    multiply = torch._int_mm if whole else torch.mm

    def make(rows: int, columns: int) -> torch.Tensor:
        if whole:
            return torch.randint(-127, 128, (rows, columns), dtype=dtype, device=device)
        return torch.randn(rows, columns, device=device).to(dtype)

    pairs = [(make(tokens_of(device.type), k), make(k, n)) for k, n in shape.products]

    def run(texts: Sequence[str], batch: int) -> np.ndarray:
        for left, right in pairs * shape.layers:
            found = multiply(left, right)
        return found[:1, :1].float().cpu().numpy()  # a GPU has finished once this is here

    return Loaded(run)


def tokens_of(device: str) -> int:
    """Return the rows of the matrices in ``products``: the tokens of a good batch."""
    return 4096 if device == "cpu" else 1 << 16


LOADERS: dict[str, Callable[[Contestant, Place], Loaded]] = {
    loader.__name__: loader
    for loader in (bertcli, sentence_transformers, onnxruntime, openvino, ctranslate2, products)
}


def load(contestant: Contestant, place: Place) -> Loaded:
    """Load a contestant with its number of threads."""
    own = asdict(place) | {"threads": contestant.threads or place.threads}
    if contestant.kind in ("bertcli", "sentence_transformers", "products"):
        import torch

        torch.set_num_threads(own["threads"])
    return LOADERS[contestant.kind](contestant, Place(**own))


def batched(place: Place, infer: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Loaded:
    """Return a contestant from what it does with a padded batch of ids and mask, int64 [B, L]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(place.model / "tokenizer.json"))
    tokenizer.enable_truncation(place.max_length)
    tokenizer.no_padding()

    def run(texts: Sequence[str], batch: int) -> np.ndarray:
        ids = [found.ids for found in tokenizer.encode_batch_fast(list(texts))]
        order = sorted(range(len(ids)), key=lambda at: -len(ids[at]))
        found = [infer(*padded([ids[at] for at in rows])) for rows in slices(order, ids, batch)]
        vectors = np.empty((len(ids), found[0].shape[1]), "float32")
        vectors[order] = np.concatenate(found)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return Loaded(run, BUDGETS)


def slices(
    order: Sequence[int], ids: Sequence[Sequence[int]], budget: int
) -> Iterator[Sequence[int]]:
    """Cut texts, longest first, into batches of at most ``budget`` tokens, padding included."""
    start = 0
    while start < len(order):
        stop = start + max(1, budget // len(ids[order[start]]))
        yield order[start:stop]
        start = stop


def padded(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and mask of rows, the longest one first."""
    ids = np.zeros((len(rows), len(rows[0])), "int64")
    keep = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        keep[at, : len(row)] = 1
    return ids, keep
