"""Dual chunk attention: a causal text cut into squares and rectangles."""
