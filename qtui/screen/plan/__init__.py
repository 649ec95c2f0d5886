"""One plan on the screen: its form, what changes it, and its estimate."""
