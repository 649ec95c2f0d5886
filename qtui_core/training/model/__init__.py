"""The real model of a run: its weights, adapters, quantized layers, optimizer and loss."""
