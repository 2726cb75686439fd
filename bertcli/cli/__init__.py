"""The command line: `app` is the entry, and the one place where errors are shown.

`commands` has one module per command, `options` the groups of options they take, `display` what
people see; `calls` are commands that Python calls. What a command does is in the library. Nothing
imports from here. Begin with `app`, then read one command and the groups in its signature.
"""
