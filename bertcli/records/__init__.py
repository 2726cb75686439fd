"""Inputs and records: the texts, pairs and ids that commands read, and their other fields.

- `input` defines `Input` (texts, files, formats and fields that the user gave) and finds its files;
  `source` defines the same for Python, with all options at one level; `hub_files` fetches files of
  datasets on the Hugging Face hub.
- `record` defines `Record` (a text or a pair); `batch` defines `RecordBatch` (columns of many
  records), and splits an input into windows of bounded size.
- `reader` defines `Reader`, which turns lines and rows of files, and stdin, into records, and
  counts the skipped ones; `given` does the same for Python lists and data frames.
- `record_fields` selects the fields of a row that make a record, `column_types` finds the numeric
  columns of CSV, `field_names` reads field names from the start of a file, `headers` warns about
  headers that are read as texts.
- `extra_ids` reads the ids of extra embeddings for the words of a record.

Start with `reader`.
"""
