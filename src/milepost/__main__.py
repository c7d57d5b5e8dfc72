"""`python -m milepost` is the command line."""

from milepost.cli import main

main()
