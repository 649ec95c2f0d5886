"""Panel 1: a value in every number format."""
