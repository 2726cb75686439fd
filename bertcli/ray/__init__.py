"""Distributed runs: many files on the workers of a Ray cluster, one output file per input file.

Each file is processed as by `bertcli embed` or `bertcli tokenize`; Ray only distributes the work.
`run` plans the shards, starts the cluster and its workers, processes shards and reports.
`locations` lists and opens files here or on a remote file system. Begin with `run`.
"""
