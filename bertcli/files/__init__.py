"""Bytes and formats, which know nothing of BERT. Imports only `errors`.

`streams` opens what is read (files, stdin, gz and zst) and cuts it into lines; `writers` makes what
is written, whole or not at all. `typed_json` is the only reader of JSON from outside, `printable`
the only filter between text from outside and a terminal. The other modules are formats:
`npy`, `parquet`, `safetensors`, `zips`, `pickles` and `torch_save`, `tables`, `id_arrays`.
Begin with `streams` and `writers`.
"""
