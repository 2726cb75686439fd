"""Text to tokens and back, exactly as transformers does it. No torch.

`model_files` reads the tokenizer of a model's folder, `tokenizer` turns records into `columns`,
`truncation` decides what stays, `run` goes through a whole input and counts, `decode` goes back.
`word_cache`, `line_output` and `worker_processes` are the fast way for plain text. Imports
`errors`, `files`, `hub` and `records`. Begin with `tokenizer`.
"""
