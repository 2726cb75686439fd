"""Running a model: opened once, run in batches by a token budget, by one process or by several.

`runtime` is an open model, and `opening` says which engine opens it, by the `options` of the user,
`accelerators` says whether torch has to be asked for GPUs, `tell` is where messages go.
`torch_runtime` is torch, on the `devices` there are: `encoder` runs batches in this process (`wire`
copies them to a device and back, `varlen` is a GPU's kernel for texts without padding), where a
`device_queue` gives a GPU the next ones while some run. `pool` shares batches among processes, one
per device. `compiled` is the CPU engine: OpenVINO (`openvino`) runs, on texts packed in `rows`,
what `compiling` made of the model for this CPU (`cpu_features`), `quantizing` in 8-bit integers,
kept in `compiled_cache` (where: `cache_folder`). The process of a command begins early, by a guess,
to read it (`early_start`, `model_import`). All are runners behind the interface in `runner`.
`static_runtime` takes means over a `static_table` of token vectors without any engine. Nobody is
called back: a run yields its steps (`progress`). `named_models` loads the network alone, by name.
Begin with `runtime`.
"""
