"""What determines the memory of a model: its modules, how they are stored, and its family."""
