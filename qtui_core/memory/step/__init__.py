"""A training step in order: load, forward, backward, optimizer; on one GPU or several."""
