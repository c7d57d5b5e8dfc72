"""Rotation of queries and keys in one launch."""
