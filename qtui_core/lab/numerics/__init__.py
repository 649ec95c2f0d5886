"""Arithmetic of the lab: rounding, products of low precision, states of optimizers."""
