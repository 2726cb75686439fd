"""Embedding: texts to vectors.

- `options` are what a user may choose, and what a sentence-transformers folder sets.
- `embedder` tokenizes records, runs the engine and pools the result; `embed_run` is one run of it
  over an input. `text_embedder` is `bertcli.Embedder`, for arrays from Python.
- `pooling` reduces token vectors to vectors of texts or words; `sentence_modules` applies the
  modules after it (Dense, Normalize) and writes sentence-transformers folders.
- `sparse` has sparse term weights (SPLADE), `late_interaction` vectors per token (ColBERT).

Nothing here imports torch. Begin with `embedder`.
"""
