"""File formats: a reader and a writer for each, without anything of BERT.

`registry` is the table of formats: a new one is a module here and an entry there. `writers` opens
the writer of any format, `tables` has the rows that writers take. The formats are `jsonl`,
`plain_text`, `delimited` (CSV and TSV), `parquet` (the only importer of pyarrow), `arrays` (NPY,
NPZ) and `safetensors`; `torch_save` reads pickles of tensors without running them. `vector_files`
reads vectors from any format and `vector_writer` writes them, in a `precision`; `number_fields`
reads every array and field of numbers. `file_types` recognises files that are not text. Begin with
`registry`.
"""
