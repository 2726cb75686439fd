"""What is read: where it comes from, records, and how files become records.

`source` has `Source` (what the user named), `records` has `Record` (a text or a pair), `reader` has
`Reader` (an iterator over a source that counts what it skips). `input_files` finds the files that
were named, `stdin_format` what stdin holds; `formats` turns lines and rows of files into records
and counts them in `read_progress`, `windows` groups them; of many records, `text_block` has the
columns. `extra_ids` reads ids that a record gives for its words;
`examples` are records with what a model is to say of them, in the kinds of `example_forms`;
`field_names` reads a header.
Imports `errors` and `files`. Begin with `reader`.
"""
