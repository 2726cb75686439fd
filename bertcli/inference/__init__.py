"""Running a model: opened once, run in batches by a token budget, by one process or by several.

`runtime` is an open model, and `opening` says which engine opens it. `torch_runtime` is torch:
`encoder` runs batches in this process, `pool` shares them among processes, one per device.
`compiled` is the CPU engine: OpenVINO runs what `compiling` made of the model, kept in
`compiled_cache`. All are runners behind the interface in `runner`. Nobody is called back: a run
yields its steps (`progress`). Begin with `runtime`.
"""
