"""Bytes and formats, which know nothing of BERT. Begin with `typed_json`."""
