"""Many files at once, on the workers of a Ray cluster: one output file per input file.

What is done with a file is what `bertcli embed` and `bertcli tokenize` do; Ray only moves work.
`shards` plans which files are read and written, `jobs` says what a worker does, `worker` does one
shard, `run` drives the pool of workers, `summary` reports. Begin with `run`.
"""
