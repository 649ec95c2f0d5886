"""Panel 2: what a quantization scheme does to a real tensor."""
