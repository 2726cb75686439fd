"""Tokenizing: text to tokens and back, exactly as transformers does it. Does not import torch.

- `tokenizer` encodes records and decodes ids; `batch` has `TokenBatch` (the tokens of many texts as
  columns) and their `Layout`; `ragged` encodes millions of texts to flat arrays.
- `truncation` divides long texts into windows, or keeps the first; `special_tokens` are those that
  a tokenizer puts around texts.
- `run` tokenizes or decodes a whole input; `statistics` counts the tokens of a corpus or its files.
- `chunks` divides texts into pieces of at most N tokens, between `graphemes`.
- `extra_columns` are ids of extra embeddings for each token.
- For Python: `call` has the arguments of transformers, `encoding` the characters and words of
  tokens.

Begin with `tokenizer`.
"""
