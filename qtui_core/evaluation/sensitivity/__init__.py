"""Which scheme for which tensor: what quantizing each alone costs, the best assignment within a
budget, and that assignment held against the model.

`kl`, `fisher` and `subject` run the model and need torch; the rest needs numpy at most.
"""
