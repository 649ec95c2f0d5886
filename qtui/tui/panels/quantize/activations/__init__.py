"""What flows through a module, and what quantizing it does to its output."""
