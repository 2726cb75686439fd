"""Groups of options, each with its panel."""
