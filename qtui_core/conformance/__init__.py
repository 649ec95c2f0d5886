"""Compares what the installed libraries do with what qtui does."""
