"""Small random checkpoints with a task head, with the vocabulary of the default model."""

import functools
import random
from pathlib import Path

import torch
import transformers
from model_reference import randomise

from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

LENGTH = 64  # maximum tokens of their sequences
SIZES = {
    "vocab_size": 30522,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LENGTH,
}
ENTITIES = ["B-LOC", "B-PER", "I-PER", "O", "MISC", "I-LOC"]
SAMPLES = Path(__file__).parents[2] / "samples" / "texts.txt"


def texts(count=25, longest=40, seed=5):
    """Return texts of many lengths in several scripts, with duplicates; the last one is empty."""
    chosen = random.Random(seed)
    words = [*SAMPLES.read_text("utf-8").split(), "unbelievable", "12.5%", "(Ouagadougou)", "😀"]
    found = [" ".join(chosen.choices(words, k=chosen.randint(1, longest))) for _ in range(count)]
    return [*found, *found[:3], ""]


@functools.cache
def tokenizer():
    """Return the tokenizer of transformers for all of these models."""
    folder = find_model(DEFAULT_MODEL, offline=True).path
    found = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=LENGTH)
    found.backend_tokenizer.no_truncation()
    found.backend_tokenizer.no_padding()
    return found


def labels(*names):
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


class Models:
    """Creates model folders, each once: `models("BertForMaskedLM")` returns the path."""

    def __init__(self, root):
        self.root = root
        self.made = {}

    def __call__(self, name, **changes):
        key = repr((name, changes))
        if key not in self.made:
            folder = self.root / f"{name}-{len(self.made)}"
            model = getattr(transformers, name)(transformers.BertConfig(**SIZES | changes))
            randomise(model)
            with torch.no_grad():  # so that results differ between texts
                model.bert.embeddings.word_embeddings.weight.mul_(5)
                for head in ("classifier", "qa_outputs"):
                    if hasattr(model, head):
                        getattr(model, head).weight.mul_(4)
            model.save_pretrained(folder)
            tokenizer().save_pretrained(folder)
            self.made[key] = folder
        return self.made[key]

    def theirs(self, name, **changes):
        """Return the model of transformers in eval mode."""
        return getattr(transformers, name).from_pretrained(self(name, **changes)).eval()


def agree(ours, theirs, where=""):
    """Compare nested results: numbers within 1e-5, other values exactly."""
    match theirs:
        case dict():
            assert list(ours) == list(theirs), where
            for key in theirs:
                agree(ours[key], theirs[key], f"{where}.{key}")
        case list():
            assert len(ours) == len(theirs), (where, ours, theirs)
            for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                agree(one, other, f"{where}[{number}]")
        case str() | int() | None:
            assert ours == theirs, where
        case _:
            assert abs(ours - theirs) <= 1e-5 * max(1, abs(theirs)), (where, ours, theirs)
