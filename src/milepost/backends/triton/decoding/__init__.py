"""Few queries over many keys."""
