"""Changes to a built model that need no change of the forward pass.

For letters in shapes, see attention.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import nn

from bertcli.models.bert import BertAttention, BertModel, extra_tables


def prune_heads(model: BertModel, heads: Mapping[int, Iterable[int]]) -> None:
    """Prune heads: layer -> heads, both numbered as in the model before any pruning.

    All pruned heads are recorded in `model.config.pruned_heads`, so that the model can be saved and
    rebuilt. Raises ModelError for a layer or head that does not exist, for a layer that would have
    no head left, and for models whose layers share a table with a column per head; ValueError if
    layers share their weights.
    Source: Are Sixteen Heads Really Better than One?, section 4.
    """
    old_config = model.config
    if old_config.num_hidden_layers > old_config.distinct_layers:
        raise ValueError("layers that share their weights cannot be pruned")
    pruned = dict(old_config.pruned_heads)
    for layer, new_heads in heads.items():
        pruned[layer] = tuple(sorted({*pruned.get(layer, ()), *new_heads}))
    pruned_layers = {layer: pruned_heads for layer, pruned_heads in pruned.items() if pruned_heads}
    new_config = replace(old_config, pruned_heads=pruned_layers)
    new_config.refuse_bad_heads("this call")
    new_config.refuse_unbuildable()
    for layer in heads:
        absent = old_config.pruned_heads.get(layer, ())
        present = [head for head in range(old_config.num_attention_heads) if head not in absent]
        kept = [index for index, head in enumerate(present) if head not in pruned[layer]]
        _keep_heads(model.encoder.layer[layer].attention, kept)
    model.config = new_config


def _keep_heads(attention: BertAttention, kept: list[int]) -> None:
    """Remove the rows and columns of all heads except those with these indices."""
    size = attention.self.head_size
    rows = torch.cat([torch.arange(size) + index * size for index in kept])
    rows = rows.to(attention.self.query.weight.device)
    for name in ("query", "key", "value"):
        layer = getattr(attention.self, name)
        layer.out_features = len(rows)
        layer.weight = nn.Parameter(layer.weight.detach()[rows])
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.detach()[rows])
    projection = attention.output.dense
    projection.in_features = len(rows)
    projection.weight = nn.Parameter(projection.weight.detach()[:, rows])


def add_extra_embeddings(
    model: BertModel, fields: Mapping[str, str], sizes: Mapping[str, int]
) -> None:
    """Add extra embedding tables of zeros, which do not change the output of the model yet.

    `sizes` has the number of rows of each table, `fields` the record field of its ids. Existing
    tables are kept; `model.config` lists all. Raises ModelError for a name that torch does not
    accept.
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
