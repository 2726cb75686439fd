"""What people see: tables, progress and messages.

`tables` has the tables of tokens, vectors, results and searches, `passages` what they show of a
long text, `inspection` the views of `inspect`. `console` is what is said on stderr, with the bar
that moves there, and the live view of a training run. `help` is `-h` and `--help`.
"""
