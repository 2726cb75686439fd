"""Model name -> folder on this machine.

A name is tried as a folder, then as a model that an installed package carries, then in the cache
of Hugging Face, then on the hub. Only the last needs the network and `huggingface_hub`; the others
import neither that nor the carrier, since `bertcli tokenize` has 150 ms in all. Begin with
`finding`; `local` has the models known by name, reads Hugging Face's cache and says which files are
fetched, `download` fills the cache, `removal` takes a model out of it.
"""

from bertcli.checkpoints.scan import MODEL_FILES, TOKENIZER_FILES, files_for
from bertcli.hub.finding import ModelFolder, find_model
from bertcli.hub.local import DEFAULT_MODEL, DEFAULT_WEIGHTS_SHA256, is_default, known_models

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_WEIGHTS_SHA256",
    "MODEL_FILES",
    "TOKENIZER_FILES",
    "ModelFolder",
    "files_for",
    "find_model",
    "is_default",
    "known_models",
]
