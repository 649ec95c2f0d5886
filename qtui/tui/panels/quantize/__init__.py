"""Panel 2: the error of quantization schemes on a real tensor."""
