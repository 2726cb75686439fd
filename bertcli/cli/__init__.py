"""The command line: `app` is the entry, and the one place where errors are shown.

`usage` explains command lines that cannot be parsed.
`commands` has the commands, one or several of a kind in a module, and the options that they alone
have; `options` the groups that commands share, `display` what people see. What a command does is in
the library. Nothing imports from here but the two commands that Python calls. Begin with `app`,
then read one command and the groups in its signature.
"""
