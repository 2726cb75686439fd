"""The command line: `app` parses arguments, runs a command, and shows its errors.

`usage` explains command lines that cannot be parsed. `commands` has a module for each group of
related commands, `options` the option groups that commands share, and `display` the terminal
output. Commands call the library; the library does not import this package. Begin with `app`, then
read one command and the option groups in its signature.
"""
