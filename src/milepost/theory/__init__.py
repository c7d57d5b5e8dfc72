"""Scaling laws of RoPE's reach, and the positions that zero padding leaks."""
