"""The networks, parts first."""
