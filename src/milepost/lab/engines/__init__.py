"""Where cells are worked: this process, several, a Ray cluster, or torchrun."""
