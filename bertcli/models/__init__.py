"""The networks, in torch: no weight files, no devices, no tokenizer.

- `config` is config.json as a record, `distance_tables` has tables of distances and angles,
  `activations` the activation functions for every engine. None of these imports torch.
- `activation_layer`, `norms` and `positions` are modules, `attention` has the kernels that a model
  takes as arguments, `bert` is the model, `heads` are the models with a task layer on top.
- `calls` translates the arguments of transformers, `outputs` are the results of calls.
- `forward_passes` runs a model in other ways: with its attention recorded, or as a decoder.
- `initial_weights` draws random weights, `surgery` changes a model that is built.

Start with `bert`. samples/transformer.py builds the Transformer of 2017 from these modules.
"""
