"""CoPE: counts of open gates."""
