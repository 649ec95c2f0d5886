"""An experiment of the lab in a process of its own."""
