"""What experiments train: tasks, twins on the same batches, recipes."""
