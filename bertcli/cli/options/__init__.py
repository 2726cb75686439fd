"""Groups of options: each is a frozen dataclass with its panel; `groups` makes Typer see them."""
