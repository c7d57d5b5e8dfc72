"""What is remembered between calls: one table, one fingerprint, one class for a kind of call."""
