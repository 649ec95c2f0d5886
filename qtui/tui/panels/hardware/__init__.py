"""Panel 7: what the machine is, what it does now, and what limits a plan on it."""
