"""Torch's operations on the tape: what each allocates, saves and returns."""
