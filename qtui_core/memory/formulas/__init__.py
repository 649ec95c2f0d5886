"""The bytes of an estimate as formulas that a person can read."""
