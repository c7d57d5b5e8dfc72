"""One method, or one family of methods, a file."""
