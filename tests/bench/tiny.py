"""Sizes at which every contest runs on a CPU in a moment."""

from __future__ import annotations

import torch

from milepost.bench.harness.settings import Lab, Llama, Settings, Sizes

SIZES = Sizes(
    a=(2, 2, 24, 8), b=(1, 2, 32, 8), c=(1, 2, 1, 16, 8), encoder=(2, 2, 12, 8), short=(2, 2, 12, 8), documents=4,
    compiled=(1, 2, 12, 8), host=(2, 2, 12, 8),
    rotary=((2, 4, 2, 8, 8),), rotary_step=(4, 4, 2, 1, 8), steps=((2, 4, 2, 16, 8), (1, 4, 2, 16, 8)),
    accuracy=(1, 2, 1, 20, 8), cpu_rotary=(1, 2, 2, 8, 8), cpu_steps=((1, 2, 2, 16, 8),), cpu_window=(1, 2, 24, 8, 4),
    cpu_chunked=(1, 2, 24, 8), lab=Lab(16, 2, 2, 2, 16, 64), llama=Llama(24, 2, 2, 1, 32, 256),
)  # fmt: skip
TINY = Settings(device="cpu", dtype=torch.float32, rounds=3, peers="without", sizes=SIZES)
