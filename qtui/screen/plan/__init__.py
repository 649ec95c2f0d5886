"""A plan on the screen: its form, how keys change it, and its estimate."""
