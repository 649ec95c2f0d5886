"""Whole layers on the tape, by the way their parts are arranged."""
