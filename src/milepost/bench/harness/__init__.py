"""Contests: contenders compared with float64, timed in turns, and reported."""
