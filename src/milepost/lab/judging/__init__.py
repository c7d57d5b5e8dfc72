"""How a trained model is judged: bits at every length, recall, and what it costs."""
