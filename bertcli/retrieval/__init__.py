"""Retrieval: search by vectors and words, duplicates, and comparison of vectors.

`search` answers queries over a corpus with `nearest` (vectors), `lexical` (BM25), or both; `corpus`
has its vectors and texts. `mining` finds negatives for training, `explain` divides scores among
tokens. `search_index` opens an index folder, `index_update` updates it. `duplicates` groups
near-duplicate texts, `input_copy` writes an input without them, `compare` compares two files of
vectors. Begin with `search`.
"""
