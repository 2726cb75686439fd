"""Changes to a built model, of which the forward passes know nothing.

Letters as in attention.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import nn

from bertcli.models.bert import BertAttention, BertModel, extra_tables


def prune_heads(model: BertModel, heads: Mapping[int, Iterable[int]]) -> None:
    """Prune heads: layer -> heads, both counted as in the model before any pruning.

    `model.config.pruned_heads` then names all pruned heads, so that the model can be saved and
    built again. ModelError for a layer or head that does not exist, or a layer that would keep
    none, and where layers share a table with something for each head; ValueError where layers
    share their weights.
    Source: Are Sixteen Heads Really Better than One?, section 4.
    """
    before = model.config
    if before.num_hidden_layers > before.distinct_layers:
        raise ValueError("layers that share their weights cannot be pruned")
    pruned = {**before.pruned_heads}
    for layer, cut in heads.items():
        pruned[layer] = tuple(sorted({*pruned.get(layer, ()), *cut}))
    after = replace(before, pruned_heads={layer: cut for layer, cut in pruned.items() if cut})
    after.refuse_bad_heads("this call")
    after.refuse_unbuildable()
    for layer in heads:
        gone = before.pruned_heads.get(layer, ())
        left = [head for head in range(before.num_attention_heads) if head not in gone]
        keep = [place for place, head in enumerate(left) if head not in pruned[layer]]
        _keep_heads(model.encoder.layer[layer].attention, keep)
    model.config = after


def _keep_heads(attention: BertAttention, keep: list[int]) -> None:
    inner = attention.self
    rows = torch.cat([torch.arange(inner.head_size) + place * inner.head_size for place in keep])
    rows = rows.to(inner.query.weight.device)
    for name in ("query", "key", "value"):
        layer = getattr(inner, name)
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
    """Add embeddings of zeros, which change no number, for ids of these fields of records.

    `model.config` then names them; those that the model has stay. ModelError for a name that torch
    does not take.
    """
    config, present = model.config, model.embeddings.extra
    added = {name: size for name, size in sizes.items() if name not in present}
    tables = extra_tables(added, config.table_size)
    for table in tables.values():
        nn.init.zeros_(table.get_parameter("weight"))
    if tables:
        model.embeddings.extra = nn.ModuleDict({**present, **tables})
    model.config = replace(
        config, extra_embeddings={**config.extra_embeddings, **added}, extra_fields=dict(fields)
    )
