"""Files of weights and configurations: their headers, their places, and their rows."""
