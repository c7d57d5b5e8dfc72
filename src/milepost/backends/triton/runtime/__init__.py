"""Launching kernels: compiled launches, operators, tile configurations, the vendor's kernel."""
