"""How each family of formats turns grouped elements into codes, and back."""
