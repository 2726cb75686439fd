"""Runs: outputs that survive a kill, resume and update.

`run` executes a run; `run_folder` keeps the rows that are committed and finds out where a run
starts; `identity` is what the bytes of an output depend on. `row_run` writes rows of any command,
`vector_run` vectors of texts; `embedded_rows` makes rows of what is embedded. Begin with `run`.
"""
