"""The tensors of a model on the screen: their list, and what of one is looked at."""
