"""The guide: chapters run, translations are of today's originals, every public name has its page."""
