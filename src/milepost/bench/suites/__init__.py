"""The suites of `milepost bench`: contests by subject."""
