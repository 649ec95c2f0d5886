"""The terminal app. Nothing here may import torch, transformers or pynvml: the engine's child
process owns those, so that a key press is never kept waiting by them."""
