"""Many cells at once, the search for rates and settings, and what a store remembers of it."""
