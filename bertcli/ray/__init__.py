"""Many files at once: a folder of shards in, a folder of shards out, on an engine with workers.

An engine moves work about; what is done to a shard is what `bertcli embed` and `bertcli tokenize`
do to a file.
"""
