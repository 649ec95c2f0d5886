"""Whole layers on the tape, by the arrangement of their parts."""
