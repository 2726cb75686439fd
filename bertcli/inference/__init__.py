"""Running a model: opened once, run in batches by a token budget, by one process or by several.

`runtime` opens a model for everybody; `encoder` runs batches in this process, `pool` shares them
among processes, one per device: two runners behind one interface. Nobody is called back: a run
yields its steps (`progress`). Begin with `runtime`.
"""
