"""Extended models in lm-evaluation-harness, and their answers where it is not installed."""
