"""The reports of `qtui lab`."""
