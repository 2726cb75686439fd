"""Many files at once: a folder of shards in, a folder of shards out, by workers of Ray.

Ray moves work about; what is done to a shard is what `bertcli embed` and `bertcli tokenize` do to a
file. `shards` plans, `jobs` says what a worker does, `worker` does one shard, `run` drives the
pool. Begin with `run`.
"""
