"""The operations of a step, their arithmetic intensity, and the time they cannot go below."""
