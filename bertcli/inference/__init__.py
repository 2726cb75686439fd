"""Running a model: devices, batches by a token budget, several processes.

`encoder` runs batches, `pool` shares them among the processes of several devices, `fits` tells
before the weights are read whether a model can take what its tokenizer makes. Begin with `encoder`.
"""
