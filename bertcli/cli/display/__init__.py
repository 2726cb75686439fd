"""What people see: the one place where text goes to a terminal is `screen`."""
