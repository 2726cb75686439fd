"""Opening a model for texts: what is checked of tokenizer and config before weights are read."""
