"""What people see: tables, progress and messages. `screen` is where text goes to a terminal.

`tables` has the tables of results, `token_tables`, `vector_tables` and `search_tables` those of
their kind, and `fitted` makes them fit; `messages` and `console` are what is said on stderr,
`progress_bars` and `training` what moves there. `model_report`, `vector_file` and `attention` are
the views of `inspect`.
"""
