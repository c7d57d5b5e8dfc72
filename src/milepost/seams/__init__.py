"""The seams of attention: verbs, facets, what is visible, and what a scheme is made of."""
