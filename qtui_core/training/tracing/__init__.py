"""A step of the real classes traced on fake tensors, without a GPU and without weights."""
