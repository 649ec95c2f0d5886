"""The experiments. Each module lists its jobs, runs them, and concludes from their outcomes."""
