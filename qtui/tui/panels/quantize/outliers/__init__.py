"""Which elements are outliers, and what they cost."""
