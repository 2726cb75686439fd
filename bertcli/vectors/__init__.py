"""Vectors in files: written whole by runs that may be killed, read back, searched, compared.

`embed_run` is `bertcli embed` as a library: records to a function, or vectors of texts; `file_run`
writes a file, which it resumes, or takes over from what an output has already. `run_folder` keeps
the rows of this and of any other command through a kill, and finds out where a run starts and
whether it is the same; `formats` is how each format is written, and in which numbers, `reading` how
it is read. `search` finds texts with the rows that are `nearest`, by their vectors, their words
(`lexical`), or both, and negatives for training; `duplicates` finds rows that are alike, and
`input_copy` writes an input without them; `compare` compares files. `search_index` is a folder that
a corpus is searched in, and `index_update` brings it up to date.
`text_embedder` makes arrays of texts from Python. Begin with `embed_run`.
"""
