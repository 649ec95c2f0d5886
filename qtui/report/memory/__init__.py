"""The document of `qtui memory`."""
