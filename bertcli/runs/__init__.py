"""Runs: outputs that survive a kill, resume and update.

`run_folder` commits the rows of a run beside its output and decides where a run starts; `file_run`
embeds texts into a file; `embedded_rows` makes rows of what is embedded. Begin with `run_folder`.
"""
