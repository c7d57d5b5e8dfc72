"""One thread for each of several test processes: with more they wait for one another, and take four times as long."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Read when torch is loaded, here and in the processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
