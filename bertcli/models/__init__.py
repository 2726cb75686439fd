"""The networks, parts first: no files, no devices, no tokenizer.

`config` says what a BERT is made of, without torch; `distance_tables` has the numbers that
positions are made of, `activations` has the activation functions for every engine. Parts are
`activation_layer` and `positions`, `attention` has the kernels that are
passed to the model, `bert` is the model, `heads` are what stands on top. `calls` takes arguments as
transformers names them, `outputs` are what a call returns. `forward_passes` runs a model in other
ways: recorded, as a decoder.

Weights before training are in `initial_weights`, changes to a built model in `surgery`. Imports
`errors`, and for the config `files` and `families`. Begin with `bert`. samples/transformer.py puts
the parts together to the Transformer of 2017.
"""
