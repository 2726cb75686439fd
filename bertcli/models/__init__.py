"""The networks, parts first: no files, no devices, no tokenizer.

`config` says what a BERT is made of (without torch), `bert` is the model, `attention` the kernels
that are passed to it, `heads` and `decoder` what stands on top. Changes to a built model are in
`surgery`. Imports `errors` and `files` (for the config). Begin with `bert`.
"""
