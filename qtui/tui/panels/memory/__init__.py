"""Panel 4: the memory of a training step, before it runs."""
