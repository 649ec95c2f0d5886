"""The feed-forward part of a layer on the tape: one, or many experts."""
