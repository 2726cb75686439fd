"""What is read: where it comes from, records, and how files become records.

`source` has `Source` (what the user named) and finds its files. `records` has `Record` (a text or a
pair), ids that it gives for its words, `TextBlock` (columns of many), and windows of these.
`reader` has `Reader` (an iterator over a source), which turns lines and rows of files, and stdin,
into records, and counts what it skips; `given` does so for lists and data frames of Python.
`column_types` finds the columns of CSV that are numbers, `field_names` reads the names of
fields from the beginning of a file; `examples` are records with what a model is to say of them.
Imports `errors` and `files`. Begin with `reader`.
"""
