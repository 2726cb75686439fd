"""Model folders: from a name to a folder, the files in it, and what they say.

- `find` returns the folder of a model: a folder, a model that an installed package carries, the
  Hugging Face cache (`hub_cache`), or the hub (`download`, the only importer of huggingface_hub);
  `removal` deletes a model from the cache.
- `folder` is the `ModelFolder`, which reads each file once; `files` has the names of the files.
- `tensors` lists the tensors in weight files and
  maps them, `names` is the only table of their former names, `shapes` derives the tensors of a
  model from its config, `weights` compares the two. None of these imports torch.
- `tokenizer_files` reads tokenizers of every age, as their class (`tokenizer_classes`) does.
- `load` builds a torch model from a folder, and saves one.

Begin with `find`.
"""
