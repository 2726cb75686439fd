"""Runs: writing outputs that survive a kill and can be resumed and updated.

`run` executes a run. `run_folder` stores the committed rows and decides where a run starts.
`identity` records what the bytes of an output depend on. `row_run` writes rows of any command,
`vector_run` writes vectors of texts, and `embedded_rows` turns embedded records into rows.
Begin with `run`.
"""
