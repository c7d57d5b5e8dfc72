"""What builds the guide: chapters that run, formulas, notebooks, reference pages, the site."""
