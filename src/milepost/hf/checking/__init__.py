"""Which position convention differs between two models."""
