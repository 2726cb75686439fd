"""Encoders that differ from BERT in a few ways: RoBERTa, DistilBERT, ModernBERT and others.

A family is a page of data: its names for config.json keys, tensors and classes, and how its model
differs from BERT (`Structure`). `models` builds networks from the structure and knows no family;
`model_folder` reads files and uses only the names. Start with `structure`, then `family`, then any
page: `roberta`, `distilbert`, `electra`, `albert`, `mpnet`, `modernbert`, `nomic`, `gte`, `jina`,
`deberta`, `eurobert`, `gemma`. `registry` lists them and defines BERT itself. No page imports
another; none imports torch.
"""
