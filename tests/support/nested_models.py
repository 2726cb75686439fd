"""Sentence models as written by old versions of sentence-transformers."""

import shutil

from front import put_json


def inside_a_sentence_model(bert, folder):
    """Write a model of old sentence-transformers, whose BERT is in a subfolder."""
    shutil.copytree(bert, folder / "0_Transformer")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    parts = {"Transformer": "0_Transformer", "Pooling": "1_Pooling"}
    kind = "sentence_transformers.models"
    modules = [{"type": f"{kind}.{name}", "path": path} for name, path in parts.items()]
    put_json(folder / "modules.json", modules)
    return folder
