"""Fine-tuning at length: stretched models trained for a few hundred steps."""
