"""The text that models learn from and are judged on, and the plainest guesses at it."""
