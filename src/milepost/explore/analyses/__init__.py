"""The analyses, a file for what belongs together."""
