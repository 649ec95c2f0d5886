"""Training steps of real models: traced on fake tensors, or run."""
