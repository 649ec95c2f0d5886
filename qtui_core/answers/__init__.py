"""Answers about tensors and schemes, as data without numpy: they are sent to the screen as they
are."""
