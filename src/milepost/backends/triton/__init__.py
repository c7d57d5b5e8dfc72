"""Kernels for NVIDIA GPUs: attention that knows positions, at the speed of attention that does not.

Functions over plain tensors. Nothing here is imported with the library; each module needs `triton`.
"""
