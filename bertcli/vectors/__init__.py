"""Vectors in files: written whole by runs that may be killed, read back, searched, compared.

`run` is `bertcli embed` as a library: it reads, embeds, writes, resumes (`stream` does without
files). `output` finds out where a run starts (`fingerprint` and `input_hashes`: whether it is the
same run; `update`: which vectors an output has already), `sink` takes its rows, `journal` and
`spool` keep them through a kill; `formats` and `rows` are how each format is written, `precision`
in which numbers, `refusals` what is not, `reading` how it is read. `nearest`, `packed` (of bits)
and `search` find rows, `multiple` texts of several rows each (`stored_lists` reads those), `corpus`
whose they are; `mining` finds negatives, `components` and `duplicates` rows that are alike;
`agreement` compares files (`similarity_agreement` those of different widths). `text_embedder` makes
arrays of texts from Python. Begin with `run`.
"""
