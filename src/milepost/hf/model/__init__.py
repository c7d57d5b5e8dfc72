"""Models of transformers changed in place: attention, masks, positions, rotary modules."""
