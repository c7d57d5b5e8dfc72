"""Queries and keys rotated: by kept tables, by position, and two ways at once."""
