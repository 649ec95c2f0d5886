"""Weights on the tape, and the operations that multiply, look up or normalize with them."""
