"""Activations of a model: captured, observed and quantized.

`capture` runs the model and needs torch and transformers. The others need only numpy.
"""
