"""The model, its recipe, and how it is trained: in one process or in several."""
