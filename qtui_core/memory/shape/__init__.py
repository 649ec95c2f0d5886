"""What of a model decides its memory: its modules, how they are stored, and the families."""
