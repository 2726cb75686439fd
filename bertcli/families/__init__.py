"""Encoders that differ from BERT in a few ways: RoBERTa, DistilBERT, ModernBERT and others.

A family is a page of data: its names for config.json keys, tensors and classes, and how its model
differs from BERT (`Structure`). `models` builds networks from the structure and knows no family;
`checkpoints` reads files and uses only the names. Begin with `structure`, then `family`, then any
page: `roberta`, `distilbert`, `electra`, `albert`, `mpnet`, `modernbert`, `nomic`, `gte`, `jina`,
`deberta`. `registry` lists them and defines BERT itself. No page imports another; nothing needs
torch.
"""
