"""Checkpoints: which files a folder uses, the tensors in them, their names, loading and saving.

`scan` says which files a model is read from: everybody asks there, a hub's downloads too. `tensors`
lists what is in these files (Google's too) and maps the numbers, `names` is the only table of names
that tensors have had, `shapes` says which tensors a config needs, and `weights` compares the two,
says what is missing, and has them as NumPy arrays by canonical name.
All of these are without torch; `load` makes a torch model of the same arrays, and saves
one. Imports `models` and what is below. Begin with `scan`, then `weights`.
"""
