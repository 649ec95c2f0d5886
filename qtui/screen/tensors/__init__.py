"""The tensors of a model on the screen: their list, and the current subject."""
