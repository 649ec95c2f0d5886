"""An assignment of schemes to tensors, as the tools that quantize take it."""
