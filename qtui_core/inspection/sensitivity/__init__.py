"""Assigns a scheme to each tensor, for the least error within a budget of bytes."""
