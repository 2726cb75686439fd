"""Texts to vectors: what a vector is made of, and making it.

`options` holds what a user may choose and what a folder of sentence-transformers says (without
torch); `pooling` is what becomes of hidden states, and what comes of records: vectors of texts,
tokens and words; `sentence_modules` what else a folder makes of vectors, and how one is written;
`sparse` is weights of words instead (SPLADE), `late_interaction` how tokens are matched (ColBERT);
`embedder` puts it together and refuses what cannot be. Imports `inference` and what is below. Begin
with `embedder`.
"""
