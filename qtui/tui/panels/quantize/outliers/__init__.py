"""The Outliers view: which elements are outliers, and how much of the error they cause."""
