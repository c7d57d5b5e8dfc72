"""Texts longer than a context: StreamingLLM, NBCE, MemWalker."""
