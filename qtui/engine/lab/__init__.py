"""Runs experiments of the lab in a child process."""
