"""Weights on the tape, and what multiplies, looks up or normalizes with them."""
