"""From plain text to a trained BERT: a vocabulary, instances, a model."""
