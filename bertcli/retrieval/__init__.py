"""Retrieval: search by vectors and words, duplicates, and comparison of vectors.

`search` answers queries over a corpus with `nearest` (vectors), `lexical` (BM25), or both, and
mines negatives for training. `search_index` is a folder that a corpus is searched in,
`index_update` updates it. `duplicates` groups texts that are alike, `input_copy` writes an input
without them, `compare` compares two files of vectors. Begin
with `search`.
"""
