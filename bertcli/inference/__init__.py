"""Running a model: opened once, run in batches by a token budget, by one process or by several.

`runtime` opens a model: it chooses the engine, by what the user asks for and the machine has
(`compute`). `cpu_engine` is OpenVINO, which runs the `graph` that is made of a model's weights
whenever it is opened. `torch_engine` is torch, on the devices there are. `static_engine` takes
means over tables of token vectors. The `runner` gives batches to all of them. Nobody is called
back: a run yields its steps (`progress`, which also says where messages go). Begin with `runtime`.
"""
