"""Decodes the weights of checkpoints that others have quantized.

`logical_weights` lists the weights of a model's modules, however they are stored; `open_weight`
reads rows of one of them as float32.
"""

from qtui_core.packed.weights import LogicalWeight, WeightReader, logical_weights, open_weight
