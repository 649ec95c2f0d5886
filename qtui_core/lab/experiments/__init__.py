"""The experiments: each gives its jobs, does them, and concludes from what they found."""
