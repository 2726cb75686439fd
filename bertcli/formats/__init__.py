"""File formats: a reader and a writer for each, independent of BERT.

`registry` is the table of formats: a new format is a module here and an entry there. `writers`
opens the writer of any format, `tables` defines the rows that writers take. The formats are
`jsonl`, `plain_text`, `delimited` (CSV and TSV), `parquet` (the only importer of pyarrow), `arrays`
(NPY, NPZ), `safetensors` and `openai_batch` (answers of OpenAI's embeddings API); `torch_save`
reads pickles of tensors without executing them.
`vector_files` reads vectors from any format and `vector_writer` writes them, in a `precision`;
`number_fields` reads every array and field of numbers; `row_offsets` computes where rows of
different lengths start in a flat array. `file_types` recognises files that are not text. Start with
`registry`.
"""
