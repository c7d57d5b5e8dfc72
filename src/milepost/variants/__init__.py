"""Attention that is not a softmax over real scores, and schedules of layers."""
