"""What a measured error means: whether it is normal, why not, and what would lower it."""
