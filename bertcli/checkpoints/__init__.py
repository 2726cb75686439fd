"""Checkpoints: which files a folder uses, the tensors in them, their names, loading and saving.

`scan` says which files a model is read from: everybody asks there, a hub's downloads too. `tensors`
lists what is in these files (`tensorflow` in Google's), each a `stored_tensor`, `names` is the only
table of names that tensors have had, `shapes` says which tensors a config needs, and `comparison`
compares the two. All of these are without torch. `tensor_reader`
reads the numbers for torch, `load` makes a model of a folder and saves one,
`load_report` says what was missing. Imports `models` and what is
below. Begin with `scan`, then `load`.
"""
