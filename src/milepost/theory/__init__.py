"""What is known about reach: scaling laws, and what padding gives away."""
