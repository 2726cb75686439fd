"""Model folders: find the folder of a model by name, and read the files in it.

- `find` returns the folder of a model: a given folder, a model carried by an installed package, the
  Hugging Face cache (`hub_cache`), or a download from the hub (`download`, the only importer of
  huggingface_hub); `removal` deletes a model from the cache.
- `folder` defines `ModelFolder`, which reads each file once; `files` defines the file names.
- `tensors` lists and maps the tensors in weight files, `names` is the only table of their old
  names, `shapes` derives the tensors of a model from its config, `weights` compares tensors and
  config. None of these imports torch.
- `tokenizer_files` reads tokenizer files of every format, following the rules of their class
  (`tokenizer_classes`).
- `load` builds a torch model from a folder, and saves one.

Start with `find`.
"""
