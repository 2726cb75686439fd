"""Terminal output: tables, progress, messages and help.

`tables` draws tokens, vectors, results and search hits, `passages` selects the excerpts of long
texts that tables show, and `inspection` draws the views of `inspect`. `console` writes messages,
progress bars and the live view of a training run to stderr. `help` prints `-h` and `--help`.
"""
