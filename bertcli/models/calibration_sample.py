"""A sample for 8-bit products: kinds of writing, tokens of any language, and what layers see."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bertcli.models.bert import BertModel

SAMPLE = (
    "The council met on 14 March 1987 and voted, by 212 to 9, to close the old harbour bridge.",
    "I absolutely loved it!!! Great value, fast delivery & friendly staff :-) 5/5 would buy again",
    "How do I undo the last commit in git without losing my changes?",
    "def area(width, height): return width * height  # x = f(y[0], {'key': 3.14})",
    "Patients with acute renal failure received 20 mg of prednisolone twice daily (p < 0.05).",
    "Le chat noir dort sous la table pendant que Zoë prépare un gâteau à l'orange.",
    "Breaking: stocks fell 3.2% after the central bank raised rates; oil, gold and bonds rose.",
    "see https://example.org/a/b?id=7 or write to info@example.org",
    "She had never been so far from home, and yet the mountains seemed to know her name.",
    "no",
)
DRAWN, LENGTH = 16, 62  # texts of random tokens, and the tokens of each


def drawn(vocabulary: int, frame: Sequence[int]) -> list[list[int]]:
    """Draw the ids of texts from a whole vocabulary, framed by the ends of the ids of a text.

    They go further than texts that are written: for many tokens, few of these tell as much.
    """
    draw = random.Random(0)
    texts = [[draw.randrange(vocabulary) for _ in range(LENGTH)] for _ in range(DRAWN)]
    return [[*frame[:1], *text, *frame[-1:]] for text in texts]


@torch.inference_mode()
def inputs_of(model: BertModel, sample: Sequence[Sequence[int]]) -> dict[nn.Module, Tensor]:
    """Return the inputs [n, in] of each linear layer of the encoder over texts of these ids."""
    found: dict[nn.Module, list[Tensor]] = {}

    def look(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        found.setdefault(layer, []).append(inputs[0].flatten(0, -2))

    layers = [part for part in model.encoder.modules() if isinstance(part, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        for ids in sample:
            row = torch.tensor([ids[: model.config.max_position_embeddings]])
            model(row, extra={name: torch.zeros_like(row) for name in model.embeddings.extra})
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: torch.cat(inputs) for layer, inputs in found.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the last bits are those of the threads, and decide on roundings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
