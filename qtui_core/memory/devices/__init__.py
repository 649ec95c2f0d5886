"""GPUs as data: their memory, their speed, and what CUDA takes on them."""
