"""Bytes and formats, which know nothing of BERT. Imports only `errors`.

- In: `streams` opens files, stdin, gz and zst and cuts them into lines, `file_types` refuses what
  is not text; `typed_json` is the only reader of JSON, `torch_save` reads pickles of tensors, of
  which nothing is run, `protobuf` messages without their schema.
- Out: `writers` has a writer for each format; `output` locks an output and publishes it with the
  files beside it; `atomic` writes files and folders atomically, `system_calls` has what not every
  system has.
- Formats: `jsonl`, `delimited` (CSV, TSV), `parquet` (the only importer of pyarrow),
  `arrays` (NPY, NPZ, token ids in both), `safetensors`; `tables` says what the rows of all are.
- Names: `paths` of files beside an output, and against reading what is written; `printable` is the
  only filter between text from outside and a terminal.
- `keywords` checks options that Python code gives; `versions`: of bertcli and of the libraries.

Begin with `streams` and `writers`.
"""
