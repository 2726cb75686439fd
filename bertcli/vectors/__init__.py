"""Vectors in files: written whole by runs that may be killed, read back, searched, compared.

`run` is `bertcli embed` as a library: it reads, embeds, writes, resumes (`update`: and takes over
what an output has already). `output` takes its rows, `run_folder` keeps them through a kill and
finds out where a run starts (`fingerprint`: whether it is the same run); `formats` is how each
format is written, `precision` in which numbers, `reading` how it is read. `search` finds texts with
the rows that are `nearest`, and negatives for training; `duplicates` finds rows that are alike;
`compare` compares files. `text_embedder` makes arrays of texts from Python. Begin with `run`.
"""
