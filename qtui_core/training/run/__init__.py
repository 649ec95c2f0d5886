"""A run: its request, its device, its course, and its reports."""
