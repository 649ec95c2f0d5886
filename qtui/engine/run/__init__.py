"""A training run in a child process, and its client."""
