"""Panel 5: a real step, held against its estimate while it runs."""
