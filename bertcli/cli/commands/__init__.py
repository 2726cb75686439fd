"""A command is a signature and one call into the library."""
