"""The Activations view: the input and output of a module, and the error of its output."""
