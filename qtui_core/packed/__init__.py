"""Weights of checkpoints that were stored quantized, decoded to the numbers they stand for.

`logical_weights` lists a model by the weights its modules have, whatever they are stored as;
`open_weight` reads rows of one as float32.
"""

from qtui_core.packed.weights import LogicalWeight, WeightReader, logical_weights, open_weight

__all__ = ["LogicalWeight", "WeightReader", "logical_weights", "open_weight"]
