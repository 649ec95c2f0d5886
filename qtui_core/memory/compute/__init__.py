"""The operations of a step, their arithmetic intensity, and a lower bound on the time of the
step."""
