"""A file for each command: what it takes, what it asks, and what it writes. Thin."""
