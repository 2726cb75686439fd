"""Inputs and records: the texts, pairs and ids that commands read, with the fields beside them.

- `input` has `Input` (what the user named: texts, files, formats, fields) and finds its files;
  `source` has the same for Python, with all options at one level.
- `record` has `Record` (a text or a pair), `batch` has `RecordBatch` (columns of many records), and
  divides an input into windows of bounded size.
- `reader` has `Reader`, which turns lines and rows of files, and stdin, into records, and counts
  what it skips; `given` does so for lists and data frames of Python.
- `record_fields` chooses the fields of a row that make a record, `column_types` finds the columns
  of CSV that are numbers, `field_names` reads the names of fields from the beginning of a file,
  `headers` notes headers that are read as texts.
- `extra_ids` are ids of extra embeddings for the words of a record.

Begin with `reader`.
"""
