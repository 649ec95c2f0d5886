"""A step on a tape: tensors without values, allocated and freed as the real ones are."""
