"""Text to tokens and back, exactly as transformers does it. No torch.

`model_files` reads the tokenizer of a model's folder as its class does (`tokenizer_classes`), also
where `older_vocabularies` have words alone. `loaded_tokenizer` knows its special tokens and limits,
`tokenizer` turns records into `columns`, which know what truncation leaves, `run` goes through a
whole input, counts (`statistics` a corpus, or each file) and says what is written, and goes back.
`extra_columns` has ids of extra embeddings for tokens. `chunks` divides texts at `boundaries`, and
writes the pieces. For Python, `call` has the arguments of transformers. Millions of texts go as
flat arrays: `wordpiece` makes their ids, `ragged` adds special tokens, truncation and padding, and
makes lines of them. Imports `errors`, `files`, `families`, `models` (its
config), `checkpoints`, `hub` and `records`. Begin with `tokenizer`.
"""
