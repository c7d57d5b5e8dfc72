"""The catalogue: every method as a row of a table and as a page of its own."""
