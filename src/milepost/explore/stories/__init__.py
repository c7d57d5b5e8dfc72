"""Nine questions about positions, each answered by computing."""
