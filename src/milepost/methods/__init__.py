"""One method, one file."""
