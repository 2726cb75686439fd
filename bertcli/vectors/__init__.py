"""Vectors in files: written whole by runs that may be killed, and read back."""
