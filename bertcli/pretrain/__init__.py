"""Pretraining: from texts to training instances, and from these to a BertForPreTraining."""
