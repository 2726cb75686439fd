"""From plain text to a trained BERT: a vocabulary, instances, a model.

- `vocabulary` trains a WordPiece vocabulary (`bertcli pretrain vocab`).
- `prepare` turns a corpus into a folder of instances: documents, tokenized on the disk, become
  sentence pairs, and those masked rows.
- `run` trains a task: `loop` (one optimizer step after another, on one process or several) with
  the losses of its objective, and writes checkpoints and the log; `options` are its numbers.
- `instances` reads such a folder, `pretraining` is its task.
- `fine_tuning` trains on the examples of a learning task (`bertcli.tasks`), read and split by
  `labelled_texts`: all weights, a head alone over vectors that are computed once, or an embedding
  model. `objectives` computes what the losses of the tasks take. `train` is that from Python,
  `label_notes` are about labels that are rare or conflict.

Begin with `prepare` and `run`.
"""
