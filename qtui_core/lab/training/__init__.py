"""What experiments train: tasks, recipes, and twins, which are runs on the same batches."""
