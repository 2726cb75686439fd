"""One module per command: a signature, and a call into the library."""
