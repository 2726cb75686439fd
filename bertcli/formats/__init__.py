"""File formats: a reader and a writer for each. Knows nothing of BERT.

`writers` has a writer for each format of rows, `tables` the rows they take. The formats are
`jsonl`, `delimited` (CSV and TSV), `parquet` (the only importer of pyarrow), `arrays` (NPY, NPZ)
and `safetensors`; `torch_save` reads pickles of tensors without running them. `file_types`
recognises files that are not text. Begin with `writers`.
"""
