"""The report of `qtui eval`."""
