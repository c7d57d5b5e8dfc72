"""Packed rows: documents, indices, and which blocks of keys anybody sees."""
