"""The schemes that are compared: their names, expressions, and methods from a user's own files."""
