"""Weights in files: which there are, what they are called, loading and saving.

`names` is the only table of names that tensors have had; `shapes` says which tensors a config
needs. Both are without torch, as are `safetensors_header`, `pickles` and `fit`, which `inspect`
uses. `load` makes a model of a folder and saves one. Imports `models` and what is below. Begin with
`names`, then `load`.
"""
