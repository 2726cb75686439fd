"""Engines: a model is opened once and run in batches of a bounded number of tokens.

`runtime` chooses the engine from the options and the machine (`compute`) and opens the model.
`openvino_engine` runs the graph that `openvino_graph` builds from the weights, on the inputs that
`openvino_inputs` makes of texts. `torch_engine` runs torch on one or several devices,
`static_engine` averages rows of a table. `engine` has the interface of all three and forms the
batches. Begin with `runtime`.
"""
