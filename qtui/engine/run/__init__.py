"""A training run in a child of its own, and the end of it that listens."""
