"""Quantization schemes as text and as data: their grammar, their rules and their formats."""
