"""Groups of options: records, each with its panel; `groups` passes them to Typer.

`rules` lists which options exclude or require others, `common` has the groups that most commands
share, `corpus` those of commands over the vectors of files, `completion` what the shell completes.
"""
