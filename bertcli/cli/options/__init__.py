"""Groups of options: records, each with its panel; `groups` passes them to Typer.

`common` has those that most commands share, `corpus` those of commands over the vectors of files,
`completion` what the shell completes.
"""
