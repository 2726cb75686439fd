"""The Transformer of "Attention Is All You Need", put together from the parts of bertcli's BERT.

    python samples/transformer.py

A BERT layer is an encoder layer of 2017: LayerNorm(x + Dropout(Sublayer(x))), twice; so is a BERT
decoder layer with cross-attention, three times. What differs is below: the embeddings, the
activation (ReLU) and the dropout (none in the attention). `encoder` and `Transformer` give the
numbers of `torch.nn.TransformerEncoder` and `torch.nn.Transformer` with the same weights, without
the LayerNorm that `torch.nn.Transformer` adds at the end of each stack.

Letters: `B` batch, `S` length of the source, `T` length of the target, `V` vocabulary. Sections are
those of the paper. As a program it learns to write words backwards, in half a minute.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.models.attention import padded
from bertcli.models.bert import BertModel, CrossAttentionMemory
from bertcli.models.config import BertConfig
from bertcli.models.forward_passes import Decoder
from bertcli.models.positions import SinusoidalPositions

BASE = BertConfig(  # the base model of table 3, with the vocabulary of section 5.1
    vocab_size=37000,
    hidden_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    intermediate_size=2048,
    hidden_act="relu",
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.0,
    layer_norm_eps=1e-5,  # the paper does not say; this is torch's
    initializer_range=512**-0.5,  # of square matrices, that of Glorot and Bengio; nor this
    position_embedding_type="sinusoidal",
)


class Embeddings(nn.Module):
    """Words times sqrt(hidden), plus sines and cosines, then dropout. Sections 3.4, 3.5 and 5.4."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        nn.init.normal_(self.word_embeddings.weight, std=width**-0.5)  # times sqrt(width): 1
        self.position_embeddings = SinusoidalPositions(width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.scale = math.sqrt(width)

    def forward(
        self, ids: Tensor, types: None = None, at: Tensor | None = None, extra: None = None
    ) -> Tensor:
        """Embed ids [..., L] at the positions `at`, by default 0 to L-1; [..., L, hidden].

        `types` and `extra` stand where a BertModel passes them; there are no tables for them.
        """
        if at is None:
            at = torch.arange(ids.shape[-1], device=ids.device)
        words = self.word_embeddings(ids) * self.scale
        return self.dropout(words + self.position_embeddings(at))


def encoder(config: BertConfig) -> BertModel:
    """Make the encoder: ids and mask [B, S] to states [B, S, hidden]. The left of figure 1."""
    model = BertModel(config, pooler=False)
    model.embeddings = Embeddings(config)
    return model


class Transformer(nn.Module):
    """An encoder and a decoder that reads it. Figure 1."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.encoder = encoder(config)
        self.decoder = encoder(replace(config, is_decoder=True, add_cross_attention=True))
        # Section 3.4: both sides and the layer before the softmax have one matrix.
        self.decoder.embeddings.word_embeddings = self.encoder.embeddings.word_embeddings

    def encode(self, source: Tensor, keep: Tensor | None = None) -> list[CrossAttentionMemory]:
        """Read source ids [B, S], of which `keep` [B, S] is 1 for tokens and 0 for padding."""
        states = self.encoder(source, keep).last_hidden_state
        return self.decoder.memories_of(states, padded(keep))

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        keep: Tensor | None = None,
        target_keep: Tensor | None = None,
    ) -> Tensor:
        """Return logits of the token after each of the target, [B, T, V]; masks as in `encode`."""
        states = Decoder(self.decoder, self.encode(source, keep))(target, target_keep)
        return self.logits(states)

    def logits(self, states: Tensor) -> Tensor:
        """Score every token of the vocabulary, [..., V]."""
        return F.linear(states, self.encoder.embeddings.word_embeddings.weight)

    @torch.no_grad()
    def write(self, source: Tensor, start: int, length: int, keep: Tensor | None = None) -> Tensor:
        """Write `length` likeliest tokens after `start`, [B, length]; each is computed once."""
        decode = Decoder(self.decoder, self.encode(source, keep))
        found = [torch.full_like(source[:, :1], start)]
        for _ in range(length):
            found.append(self.logits(decode(found[-1])).argmax(-1))
        return torch.cat(found[1:], 1)


# --- as a program ---

PAD, START, END = range(3)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SMALL = replace(
    BASE,
    vocab_size=3 + len(LETTERS),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    initializer_range=64**-0.5,
    hidden_dropout_prob=0.0,
)


def batch(words: list[str]) -> Tensor:
    """Turn words into ids [B, L], each with its end, padded."""
    ids = [torch.tensor([3 + LETTERS.index(letter) for letter in word] + [END]) for word in words]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)


def random_words(draw: random.Random, count: int) -> list[str]:
    """Draw words of 1 to 9 letters."""
    return ["".join(draw.choices(LETTERS, k=draw.randint(1, 9))) for _ in range(count)]


def learn(model: Transformer, steps: int, warmup: int, size: int = 64) -> list[float]:
    """Learn to write words backwards, and return the losses; the rates are those of section 5.3."""
    draw, width, losses = random.Random(0), model.encoder.config.hidden_size, []
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        words = random_words(draw, size)
        source, target = batch(words), batch([word[::-1] for word in words])
        before = F.pad(target[:, :-1], (1, 0), value=START)
        logits = model(source, before, (source != PAD).long(), (before != PAD).long())
        loss = F.cross_entropy(  # section 5.4
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def backwards(model: Transformer, words: list[str]) -> list[str]:
    """Write words backwards, as the model believes they are."""
    source = batch(words)
    rows = model.write(source, START, source.shape[1], (source != PAD).long()).tolist()
    ends = [row.index(END) if END in row else len(row) for row in rows]
    return [
        "".join(LETTERS[one - 3] for one in row[:end] if one > END)
        for row, end in zip(rows, ends, strict=True)
    ]


def main() -> None:
    """Learn, and show what was learnt."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the products are too small for more
    model = Transformer(SMALL)
    learn(model, steps=800, warmup=150)
    words = ["attention", "is", "all", "you", "need"]
    for word, found in zip(words, backwards(model.eval(), words), strict=True):
        print(word, found)


if __name__ == "__main__":
    main()
