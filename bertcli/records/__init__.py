"""What is read: where it comes from, records, and how files become records.

`source` has `Source` (what the user named) and finds its files, `records` has `Record` (a text or a
pair), ids that it gives for its words, and `TextBlock` (columns of many). `reader` has `Reader` (an
iterator over a source), which counts in `read_progress` what it skips, and groups of records.
`formats` turns lines and rows of files, and stdin, into records; `examples` are records with what a
model is to say of them.
Imports `errors` and `files`. Begin with `reader`.
"""
