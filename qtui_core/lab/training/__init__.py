"""What experiments train: tasks, recipes, and twins: runs on the same batches."""
