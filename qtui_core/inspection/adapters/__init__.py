"""Adapters merged into a model and quantized: how much of the update survives. Needs numpy."""
