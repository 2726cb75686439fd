"""Groups of options: frozen dataclasses, each with its panel; `groups` passes them to Typer."""
