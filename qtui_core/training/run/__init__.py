"""A run: request, device, phases, and reports."""
