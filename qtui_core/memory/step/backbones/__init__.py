"""The part of a model before its head: embeddings, masks, layers and the last norm."""
