"""Attention on the tape: projections, positions, masks, caches and kernels."""
