"""Which scheme for which tensor: what quantizing each alone costs, the best assignment within a
budget, and that assignment held against the model.

`predictions` runs the model and needs torch; the rest needs numpy at most.
"""
