"""Encoders that are BERT but for a few places: RoBERTa, DistilBERT, ModernBERT and their like.

A family is a page that says, as data, how its config.json, its tensors and its classes are called
and where its model differs from BERT (`Structure`). The networks are built in `models`, which reads
the structure and knows no family; files are read in `checkpoints`, which knows the names alone.
Begin with `structure`, then `family`, then any page: `roberta`, `distilbert`, `electra`,
`albert`, `mpnet`, `modernbert`, `nomic`, `gte`, `jina`, `deberta`; `registry` lists them, and has
BERT itself. No page imports another; nothing needs torch.
"""
