"""One call of `attend`, with its defaults filled in."""
