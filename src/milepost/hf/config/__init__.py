"""Configurations of transformers: where they come from, and the `rope_parameters` that are written."""
