"""The explorer: a small server on this machine that computes what a page shows."""
