"""The Model view: how far the model is from the original under each scheme."""
