"""Vectors in files: written whole by runs that may be killed, read back, searched, compared.

`run` is `bertcli embed -o` as a library: it reads, embeds, writes and resumes. `journal`, `spool`
and `output` are how nothing is lost; `formats` and `rows` how each format is written, `reading` how
it is read; `nearest` and `search` find texts, `agreement` compares files. Begin with `run`.
"""
