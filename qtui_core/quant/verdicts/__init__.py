"""What a measured error means: whether it is normal, why, and what would lower it."""
