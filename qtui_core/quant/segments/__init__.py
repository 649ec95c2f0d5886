"""A tensor as segments of float32: how they are read, grouped, rounded and processed."""
