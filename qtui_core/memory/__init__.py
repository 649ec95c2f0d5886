"""Where the bytes of a run go, from its configuration alone. Standard library only."""
