"""How far a quantized model is from the original: KL divergence, loss and agreement on a text.

`streamed`, `scores` and `evaluate` run the model and need torch and transformers; the rest needs
numpy at most.
"""
