"""What people see: tables, progress and messages. `screen` is where text goes to a terminal."""
