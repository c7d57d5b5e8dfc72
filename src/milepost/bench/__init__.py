"""Speed and memory beside the peers, in one run: `python -m milepost.bench`."""
