"""The document of `qtui train` and `qtui replay`."""
