"""From plain text to a trained BERT: a vocabulary, instances, a model.

- `vocabulary` trains a WordPiece vocabulary (`bertcli pretrain vocab`).
- `prepare` turns a corpus into a folder of instances: `documents` (tokenized, on disk) ->
  `instances` (sentence pairs, masks) -> `instance_rows` (arrays) -> `shards` (the folder, also
  read); `statistics` counts what they are like.
- `run` trains on such a folder: `options`, `configuration` -> `batches` -> `loop` (one optimizer
  step) with `objective` (losses, evaluation) -> `checkpoints`, `log`; `ranks` are the processes.

Begin with `prepare` and `run`. Only `objective`, `loop`, `checkpoints`, `ranks` and `run` import
torch.
"""
