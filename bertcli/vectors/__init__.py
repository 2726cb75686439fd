"""Vectors in files: written whole by runs that may be killed, read back, searched, compared.

`run` is `bertcli embed` as a library: it reads, embeds, writes, resumes (`stream` does without
files). `output` finds out where a run starts (`fingerprint`: whether it is the same run; `update`:
which vectors an output has already) and takes its rows, `journal` and `spool` keep them through a
kill; `formats` is how each format is written, `precision` in which numbers, `reading` how it is
read. `search` finds texts with the rows that are `nearest`; `mining` finds negatives, `duplicates`
rows that are alike; `agreement` compares files. `text_embedder` makes arrays of texts from Python.
Begin with `run`.
"""
