"""Perplexity by length, recall, needles and attention sinks of a model on a text."""
