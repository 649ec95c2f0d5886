"""Memory over the events of a step, as a picture."""
