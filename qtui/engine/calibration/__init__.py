"""Measurements of this machine, each in a process of its own."""
