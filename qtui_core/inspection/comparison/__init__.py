"""Compares two checkpoints of the same weights."""
