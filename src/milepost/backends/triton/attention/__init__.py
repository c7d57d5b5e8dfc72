"""Attention forward and backward, with biases by distance."""
