"""From plain text to a trained BERT: a vocabulary, instances, a model.

- `vocabulary` trains a WordPiece vocabulary (`bertcli pretrain vocab`).
- `prepare` turns a corpus into a folder of instances: `documents` (tokenized, on disk) ->
  `instances` (sentence pairs, masks) -> arrays in `shards` (the folder, also read).
- `run` trains a task: `loop` (one optimizer step over `batches`, on one process or several) with
  the losses of its objective, `checkpoints` and the log; `options` are its numbers.
- `pretraining` is the task of such a folder.
- `fine_tuning` is the task of labelled texts: read and checked by `labelled_texts`, as
  arrays in `batches`, with the losses of heads in `objectives`; `frozen` is that of a head alone
  over vectors that are computed once; `pairs` that of an embedding model.

Begin with `prepare` and `run`.
"""
