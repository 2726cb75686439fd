"""Texts to vectors: what a vector is made of, and making it.

`options` holds what a user may choose and `sentence_config` what a folder of sentence-transformers
says (both without torch; `sentence_folder` writes one); `pooling` is what becomes of hidden states,
`sentence_modules` what else a folder makes of vectors; `term_weights` are those of words instead
(SPLADE; `sparse_config` says which), `late_interaction` how tokens are matched (ColBERT);
`embedder` puts it together and refuses what cannot be, `embedded` is what comes of it: vectors of
texts, tokens and words. Imports `inference` and what is below.
Begin with `embedder`.
"""
