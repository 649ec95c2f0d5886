"""GPUs as data: what each holds, how fast it is, and what CUDA takes on it."""
