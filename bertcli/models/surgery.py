"""Changes to a built model, which need no change of the forward passes.

Letters as in attention.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import nn

from bertcli.models.bert import BertAttention, BertModel, extra_tables


def prune_heads(model: BertModel, heads: Mapping[int, Iterable[int]]) -> None:
    """Prune heads: layer -> heads, both numbered as in the model before any pruning.

    `model.config.pruned_heads` then has all pruned heads, so that the model can be saved and built
    again. Raises ModelError for a layer or head that does not exist, for a layer that would keep no
    head, and for models whose layers share a table with a column per head; ValueError if layers
    share their weights.
    Source: Are Sixteen Heads Really Better than One?, section 4.
    """
    before = model.config
    if before.num_hidden_layers > before.distinct_layers:
        raise ValueError("layers that share their weights cannot be pruned")
    pruned = dict(before.pruned_heads)
    for layer, new_heads in heads.items():
        pruned[layer] = tuple(sorted({*pruned.get(layer, ()), *new_heads}))
    pruned_layers = {layer: pruned_heads for layer, pruned_heads in pruned.items() if pruned_heads}
    after = replace(before, pruned_heads=pruned_layers)
    after.refuse_bad_heads("this call")
    after.refuse_unbuildable()
    for layer in heads:
        absent = before.pruned_heads.get(layer, ())
        present = [head for head in range(before.num_attention_heads) if head not in absent]
        kept = [index for index, head in enumerate(present) if head not in pruned[layer]]
        _keep_heads(model.encoder.layer[layer].attention, kept)
    model.config = after


def _keep_heads(attention: BertAttention, kept: list[int]) -> None:
    """Remove the rows and columns of all heads but those with these indices."""
    size = attention.self.head_size
    rows = torch.cat([torch.arange(size) + index * size for index in kept])
    rows = rows.to(attention.self.query.weight.device)
    for name in ("query", "key", "value"):
        layer = getattr(attention.self, name)
        layer.out_features = len(rows)
        layer.weight = nn.Parameter(layer.weight.detach()[rows])
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.detach()[rows])
    out = attention.output.dense
    out.in_features = len(rows)
    out.weight = nn.Parameter(out.weight.detach()[:, rows])


def add_extra_embeddings(
    model: BertModel, fields: Mapping[str, str], sizes: Mapping[str, int]
) -> None:
    """Add embedding tables of zeros, so that the output of the model does not change yet.

    `sizes` has the size of each table, `fields` the field of records with its ids. Tables that the
    model has stay as they are; `model.config` lists all. Raises ModelError for a name that torch
    does not accept.
    """
    config = model.config
    present = model.embeddings.extra
    added = {name: size for name, size in sizes.items() if name not in present}
    tables = extra_tables(added, config.table_size)
    for table in tables.values():
        nn.init.zeros_(table.get_parameter("weight"))
    if tables:
        model.embeddings.extra = nn.ModuleDict(dict(present) | dict(tables))
    all_sizes = dict(config.extra_embeddings) | added
    model.config = replace(config, extra_embeddings=all_sizes, extra_fields=dict(fields))
