"""Training: a vocabulary, pretraining instances, pretraining, and fine-tuning.

- `vocabulary` trains a WordPiece vocabulary (`bertcli pretrain vocab`).
- `prepare` tokenizes a corpus and writes a folder of masked sentence pairs, the instances.
- `instances` reads that folder, and `pretraining` trains on it.
- `fine_tuning` trains on the examples of a learning task (`bertcli.tasks`): all weights, only a
  head on vectors that are computed once, or an embedding model. `labelled_texts` reads and splits
  the examples, `objectives` computes the losses, `label_notes` are notes about rare and conflicting
  labels. `train` is the Python API.
- `run` executes a training run, with checkpoints and a log; `loop` has the optimizer steps, on one
  process or several; `options` are the options of all runs.

Begin with `prepare` and `run`.
"""
