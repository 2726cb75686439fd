"""The networks, parts first: no files, no devices, no tokenizer.

`config` says what a BERT is made of (`config_checks` what its values may be), both without torch;
`activations` and `positions` are parts, `attention` has the kernels that are passed to the model,
`bert` is the model, `heads` and `decoder` are what stands on top. `forward_passes` runs it in other
ways, `module_tree` shows it.

Changes to a built model are in `surgery`: `cpu_products` are faster linear layers. Imports `errors`
and `files` (for the config). Begin with `bert`. samples/transformer.py puts the parts together to
the Transformer of 2017.
"""
