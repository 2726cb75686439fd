"""From plain text to a trained BERT: a vocabulary, instances, a model.

`vocabulary`, `prepare` (documents, instances, masks, shards) and `run` (batches, loss, loop,
checkpoints, evaluation) are the three commands of `bertcli pretrain`. Begin with `run`.
"""
