"""Panel 7: the GPUs of the machine, what they do now, and what limits a plan on them."""
