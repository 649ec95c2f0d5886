"""The child that estimates memory, and the questions that it answers."""
