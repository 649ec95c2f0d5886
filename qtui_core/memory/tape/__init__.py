"""A step on a tape: tensors without values, allocated and freed like the real ones."""
