"""Embedding: texts to vectors.

- `options` defines the user options and reads the settings of a sentence-transformers folder.
- `embedder` tokenizes records, runs the engine and pools the result; `embed_run` runs it over one
  input. `text_embedder` defines `bertcli.Embedder`, which returns arrays in Python.
- `pooling` reduces token vectors to text or word vectors; `sentence_modules` applies the modules
  after pooling (Dense, Normalize) and writes sentence-transformers folders.
- `sparse` computes sparse term weights (SPLADE), `late_interaction` token vectors (ColBERT).

No module imports torch at import time. Begin with `embedder`.
"""
