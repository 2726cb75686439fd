"""Option groups: classes whose attributes are command-line options, each with a help panel.

`groups` turns option groups into Typer commands. `rules` lists which options exclude or require
others. `common` has the groups that most commands share, `corpus` the groups of commands that
compare the vectors of files, `vectors` options of the commands that compute vectors, and
`completion` the shell completion.
"""
