"""Measures the memory and the time that a run takes on its device."""
