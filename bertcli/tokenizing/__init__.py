"""Text to tokens and back, exactly as transformers does it. No torch.

`model_files` reads the tokenizer of a model's folder as its class does (`tokenizer_classes`), also
where there are words alone. `tokenizer` turns records into tokens, and goes back. These are
`columns`, which know what truncation leaves: lists of few texts, `ragged` arrays of millions, and
lines of these. `run` goes through a whole input, counts (`statistics` a corpus, or each file) and
says what is written. `extra_columns` has ids of extra embeddings for tokens. `chunks` divides
texts, never within the `graphemes` that people see, and writes the pieces. For Python, `call` has
the arguments of transformers, `encoding` the characters and words of tokens. Imports `errors`,
`files`, `families`, `checkpoints`, `hub` and `records`. Begin with `tokenizer`.
"""
