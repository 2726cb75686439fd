"""Many files at once, on the workers of a Ray cluster: one output file per input file.

What is done with a file is what `bertcli embed` and `bertcli tokenize` do; Ray only moves work.
`run` does one shard, plans which files are read and written, at `locations` here or on a remote
file system, starts the cluster and its workers, and reports. Begin with `run`.
"""
