"""Weights in files: which there are, what they are called, loading and saving."""
