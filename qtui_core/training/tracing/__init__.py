"""Traces a step of the real classes on fake tensors, without a GPU and without weights."""
