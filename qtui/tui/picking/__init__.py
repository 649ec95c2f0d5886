"""What the shell lets pick: another model, another place."""
