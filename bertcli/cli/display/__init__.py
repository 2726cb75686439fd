"""What people see: tables, progress and messages. `screen` is where text goes to a terminal.

`tables` has the tables of results, `token_tables` those of tokens, `vector_tables` those of vectors
and of searches, `inspection` the views of `inspect`. `console` is what is said on stderr, with the
bar that moves there; `training` is the live view of a training run. `help` is `-h` and `--help`.
"""
