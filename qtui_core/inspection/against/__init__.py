"""Two checkpoints of the same weights, held against each other."""
