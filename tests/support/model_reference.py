"""Shared by the tests of models: small random models of ours and of transformers."""

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

from bertcli.models.attention import packed
from bertcli.models.config import BertConfig

torch.set_num_threads(1)

TINY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
}


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw weights that are large enough for mistakes to exceed 1e-5."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.normal_(0, 0.2, generator=generator)
            if name.endswith("LayerNorm.weight"):
                weight.add_(1)
    return model


def theirs(name: str = "BertModel", **changes) -> nn.Module:
    """Return a random model of transformers in eval mode, which can return attentions."""
    config = transformers.BertConfig(**{**TINY, **changes})
    config._attn_implementation = "eager"
    return randomise(getattr(transformers, name)(config)).eval()


def tiny(**changes) -> BertConfig:
    return BertConfig.from_dict({**TINY, **changes})


def load(ours: nn.Module, model: nn.Module) -> nn.Module:
    """Load the weights of a model into ours, and ours into it, both strictly."""
    ours.load_state_dict(model.state_dict(), strict=True)
    model.load_state_dict(ours.state_dict(), strict=True)
    return ours.eval()


def texts(batch: int = 3, length: int = 12, vocab: int = 97):
    """Return ids, mask and token types of a padded batch of pairs of decreasing length."""
    generator = torch.Generator().manual_seed(batch * length)
    ids = torch.randint(1, vocab, (batch, length), generator=generator)
    lengths = torch.arange(length, length - 3 * batch, -3)
    keep = (torch.arange(length) < lengths[:, None]).long()
    types = (torch.arange(length) >= lengths[:, None] // 2).long() * keep
    return ids * keep, keep, types


def encode(model: nn.Module, ids, lengths, types=None):
    """Return the last hidden states [T, hidden] of concatenated texts."""
    at = torch.cat([torch.arange(length) for length in lengths])
    return model.hidden(ids, types=types, at=at, kernels=model.direction(packed(lengths)))


def rewrite(folder, change) -> None:
    """Rewrite the weights file of a folder; ``change`` maps the tensors by name to new ones."""
    path = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(change(weights), path, {"format": "pt"})


def close(ours, theirs, tolerance: float = 1e-5) -> None:
    assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
