"""Quantization schemes as text and as data: grammar, rules and formats."""
