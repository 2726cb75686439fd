"""Groups of options: records, each with its panel; `groups` passes them to Typer."""
