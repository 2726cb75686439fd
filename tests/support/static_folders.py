"""Static models (tables of token vectors) as written by sentence-transformers and model2vec."""

import json

import numpy as np
import tokenizers_made
from front import json_in, put_json
from safetensors.numpy import save_file
from tokenizers import Tokenizer

WIDTH = 24


def tokenizer_of(kind="bert"):
    return Tokenizer.from_str(tokenizers_made.stored(kind))


def table(rows, seed=0, width=WIDTH):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def rows_of(kind):
    return max(tokenizer_of(kind).get_vocab().values()) + 1


def static_folder(path, kind="bert", place="", name="embedding.weight", more=(), **tensors):
    """Write a folder of sentence-transformers; ``more`` are the types of further modules."""
    inner = path / place
    inner.mkdir(parents=True)
    (inner / "tokenizer.json").write_text(tokenizers_made.stored(kind), "utf-8")
    save_file({name: table(rows_of(kind)), **tensors}, inner / "model.safetensors")
    kinds = [("StaticEmbedding", place), *((one, f"{at}_{one}") for at, one in enumerate(more, 1))]
    modules = [
        {"idx": at, "name": str(at), "path": place, "type": f"sentence_transformers.models.{one}"}
        for at, (one, place) in enumerate(kinds)
    ]
    put_json(path / "modules.json", modules)
    return path


def model2vec_folder(path, kind="bert", embeddings=None, config=(), **tensors):
    """Write a folder of model2vec, which drops unknown words and has a length limit."""
    path.mkdir(parents=True)
    (path / "tokenizer.json").write_text(tokenizers_made.stored(kind), "utf-8")
    embeddings = table(rows_of(kind)) if embeddings is None else embeddings
    save_file({"embeddings": embeddings, **tensors}, path / "model.safetensors")
    put_json(path / "config.json", {"model_type": "model2vec", **dict(config)})
    return path


def unknown_of(tokenizer):
    model = json.loads(tokenizer.to_str())["model"]
    token = model.get("unk_token")
    return tokenizer.token_to_id(token) if token else model.get("unk_id")


def like_model2vec(path, texts):
    """Return the vectors of texts as computed by model2vec 0.10, one text at a time."""
    from safetensors.numpy import load_file

    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tensors, config = (
        load_file(path / "model.safetensors"),
        json_in(path / "config.json"),
    )
    limit, unknown = config.get("max_length", 512), unknown_of(tokenizer)
    tokenizer.no_truncation()
    if limit is not None:
        median = int(np.median([len(token) for token in tokenizer.get_vocab()]))
        texts = [text[: limit * median] for text in texts]
        tokenizer.enable_truncation(limit)
    found = []
    for text in texts:
        ids = [
            one for one in tokenizer.encode(text, add_special_tokens=False).ids if one != unknown
        ]
        rows = tensors["embeddings"][tensors["mapping"][ids] if "mapping" in tensors else ids]
        rows = rows.astype(np.float64)
        if "weights" in tensors:
            rows = rows * tensors["weights"][ids][:, None]
        vector = rows.mean(0) if ids else np.zeros(rows.shape[1])
        found.append(
            vector / (np.linalg.norm(vector) + 1e-32) if config.get("normalize") else vector
        )
    return np.array(found)
