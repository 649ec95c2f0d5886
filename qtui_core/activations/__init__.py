"""Activations of a model: captured (with torch and transformers), observed and quantized."""
