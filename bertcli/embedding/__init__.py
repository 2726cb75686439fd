"""Embedding: texts to vectors.

- `options` defines the user options and reads the settings of a sentence-transformers folder.
- `record_embedder` tokenizes records, runs the engine and pools the result; `embed_run` runs it
  over one input. `embedder` is `bertcli.Embedder` on top of both: from texts to arrays.
- `pooling` reduces token vectors to text or word vectors; `sentence_modules` applies the modules
  after pooling (Dense, Normalize) and writes sentence-transformers folders. `contributions` divides
  vectors among tokens.
- `sparse` computes sparse term weights (SPLADE), `late_interaction` token vectors (ColBERT).

No module imports torch at import time. Start with `record_embedder`.
"""
