"""Numbers: rotations, and operators that a compiler sees as one node."""
