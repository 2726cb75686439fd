"""The commands, those of a kind in one module: a signature, and a call into the library."""
