"""A run: what is asked for, where it takes place, how it goes on, and what it tells."""
