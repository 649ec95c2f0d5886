"""Values of tensors that a checkpoint stores quantized, by the libraries that made them."""
