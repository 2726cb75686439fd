"""Tokenizing: text to tokens and back, with the same results as transformers.

Does not import torch.

- `tokenizer` encodes records and decodes ids; `encode_block` decides whether tokens are lists or
  arrays; `batch` defines `TokenBatch` (the tokens of many
  texts as columns) and its `Layout`; `ragged` encodes millions of texts to flat arrays.
- `truncation` splits long texts into windows, or keeps the first window; `special_tokens` finds the
  special tokens that a tokenizer adds around texts.
- `run` tokenizes or decodes a whole input; `statistics` counts the tokens of a corpus or of each of
  its files.
- `chunks` splits texts into chunks of at most N tokens, never inside a grapheme (`graphemes`);
  `late_chunks` finds the part of a text in which a chunk is encoded.
- `extra_columns` adds the ids of extra embeddings to each token.
- For Python: `call` implements the arguments of a transformers tokenizer call, `encoding` maps
  tokens to characters and words.

Start with `tokenizer`.
"""
