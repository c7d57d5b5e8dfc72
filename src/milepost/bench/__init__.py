"""Speed and memory compared with peers, in one run: `milepost bench`, or `python -m milepost.bench`."""
