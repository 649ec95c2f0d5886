"""The arithmetic of the lab: rounding, products in low precision, stored optimizer states."""
