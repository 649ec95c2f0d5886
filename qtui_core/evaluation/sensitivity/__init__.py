"""What each tensor's quantization does to the predictions of the model: measured (`kl`) or
estimated from gradients (`fisher`). Needs torch."""
